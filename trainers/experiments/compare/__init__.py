"""Comparison of strategies with statistics."""
