"""Measurements of the project, with their results in `results/`."""
