"""Keras programs as users write them; none of them knows of this project."""
