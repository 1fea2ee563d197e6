"""Shares of the time of a step, and their causes (`--mode=explain`)."""
