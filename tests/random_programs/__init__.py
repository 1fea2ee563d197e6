"""Keras programs made by chance, to compare with Keras's own `fit`.

  python -m tests.random_programs.program SEED

prints the program of a seed. Programs of one seed are the same in every process.
"""
