"""Training loop that runs many steps inside the TensorFlow runtime."""
