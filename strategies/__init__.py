"""Distribution strategies, one per file in this folder."""
