"""Models, data and training steps as users of this project write them."""
