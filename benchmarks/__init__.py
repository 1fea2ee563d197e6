"""Measurements of the project beside other programs. `tests` checks correctness."""
