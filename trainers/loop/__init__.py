"""Outer training loop and its parts."""
