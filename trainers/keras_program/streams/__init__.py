"""Data of a `fit` that are read as a stream of batches."""
