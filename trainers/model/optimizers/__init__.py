"""Optimizers, learning rate schedules and the scale of the loss."""
