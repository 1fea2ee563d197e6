"""Prediction of step time on other clusters."""
