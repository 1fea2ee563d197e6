"""What happens to runs when something goes wrong: real commands, real signals."""
