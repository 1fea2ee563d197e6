"""The outer training loop and its parts."""
