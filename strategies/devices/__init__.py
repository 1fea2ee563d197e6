"""Devices that replicas run on."""
