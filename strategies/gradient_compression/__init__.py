"""Compressed sums of gradients over processes, with error feedback."""
