"""The parts of --mode=verify: what is run, how recordings agree, and why they do not.

Nothing here loads TensorFlow: a verification starts runs and reads what they recorded.
"""
