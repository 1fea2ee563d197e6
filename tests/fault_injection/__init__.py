"""Fault injection: real commands with real signals, and the promises that must hold."""
