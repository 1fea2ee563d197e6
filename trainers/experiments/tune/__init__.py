"""The search that gives every arm of a comparison its best value of a setting."""
