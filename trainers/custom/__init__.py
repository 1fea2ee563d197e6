"""Models, data and training steps of the user's own."""
