"""The tasks of a cluster: their addresses, start-up and failures."""
