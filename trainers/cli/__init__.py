"""Command line of `python -m trainers.main`."""
