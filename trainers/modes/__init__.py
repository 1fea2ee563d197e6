"""Modes of `--mode`, and roles of tasks except the chief."""
