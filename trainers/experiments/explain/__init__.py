"""Where the time of a step goes, and why (`--mode=explain`)."""
