"""Verification that strategies train the same."""
