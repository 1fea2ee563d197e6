"""What `--mode` chooses, and the parts of tasks that are not the chief."""
