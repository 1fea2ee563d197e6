"""Replica computation of a step, and the weight update."""
