"""Loop over steps inside the TensorFlow runtime."""
