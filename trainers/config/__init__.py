"""Settings of a run, as dataclasses that validate themselves.

No module here imports TensorFlow or a tracker, so that a wrong flag is refused in a
fraction of a second.
"""
