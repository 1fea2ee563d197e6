"""First cluster of the TensorFlow 1 tutorials."""
