"""The devices that replicas run on."""
