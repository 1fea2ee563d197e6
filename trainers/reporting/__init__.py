"""Metrics, TensorBoard summaries, result.json and trackers."""
