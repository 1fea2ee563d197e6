"""Fault injection: real commands, real signals, and the promises that hold then."""
