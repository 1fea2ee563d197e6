"""Exchange of gradients, updates, variables and messages between workers."""
