"""Building blocks below all other packages: errors, settings, text, files."""
