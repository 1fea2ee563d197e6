"""Collectives on buckets of tensors, and updates divided between workers."""
