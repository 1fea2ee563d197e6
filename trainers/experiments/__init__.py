"""Experiments: runs that a mode starts, and their analysis."""
