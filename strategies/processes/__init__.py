"""Start of processes, by fork from a process with TensorFlow where possible."""
