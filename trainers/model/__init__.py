"""Computation of one replica in a step, and the weight update."""
