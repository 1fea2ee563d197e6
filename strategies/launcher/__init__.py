"""Starts the processes of a cluster on this machine."""
