"""Signals, stalls, divergence and errors that a user can correct."""
