"""Speed of the project beside other programs for the same task."""
