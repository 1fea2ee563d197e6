"""Training loops of parameter servers, TensorFlow's job `ps`."""

# Steps of which a server keeps a record. Later ones overwrite it, so that a call of
# asynchronous workers has no more: a slow worker would not find its steps. The number
# is fixed, because a variable of unknown shape ends its server with SIGABRT (TensorFlow
# 2.21).
NUM_RECORDED_STEPS = 1 << 14
