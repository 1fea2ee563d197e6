"""The parts of --mode=verify: what is run, how recordings agree, and why they do not.

A verification starts runs and reads what they recorded. So nothing here loads
TensorFlow, but `keras_step`, which the run of one device calls before it trains.
"""
