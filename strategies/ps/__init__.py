"""Training loops of parameter servers, TensorFlow's job `ps`."""
