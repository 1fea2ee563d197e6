"""Settings of a run, as dataclasses that validate themselves."""
