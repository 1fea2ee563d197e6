"""Experiment trackers: MLflow and Weights & Biases."""
