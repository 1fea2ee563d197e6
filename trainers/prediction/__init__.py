"""Step times on a cluster that one does not have yet."""
