"""Runs that a mode starts, and their analysis."""
