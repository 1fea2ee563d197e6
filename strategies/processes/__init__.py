"""Start of processes, by fork from one that has imported TensorFlow where possible."""
