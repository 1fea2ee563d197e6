"""Machinery of parameter servers, TensorFlow's job `ps`."""
