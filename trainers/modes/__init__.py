"""Modes of `--mode`, and the roles of tasks other than the chief."""
