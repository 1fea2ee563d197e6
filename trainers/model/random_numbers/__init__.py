"""Random numbers of a step, by seed, step and replica or example."""
