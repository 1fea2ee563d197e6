"""The first cluster of the TensorFlow 1 tutorials."""
