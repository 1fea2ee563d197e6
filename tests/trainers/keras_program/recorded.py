"""Runs a Keras program, and writes the results and weights of its calls of fit.

  python recorded.py RECORD.json FLOATX PROGRAM.py [ARGUMENTS...]

It is itself a Keras program, to be run with and without --script. Examples are not
shuffled: otherwise the batches would differ from Keras's own fit.
"""

import json
import runpy
import sys

import keras
import numpy as np

path, floatx, *sys.argv = sys.argv[1:]
keras.config.set_floatx(floatx)
fit = keras.Model.fit
record: list[dict] = []


def recorded(model, *args, **kwargs):
    optimizer = model.optimizer
    if model.built and optimizer is not None and not optimizer.built:
        # An optimizer that fit builds in its traced step makes its variables anew in
        # every step, as ScheduleFreeAdamW does (tests/test_tensorflow_facts.py).
        optimizer.build(model.trainable_variables)
    # A model that fit builds has none.
    initial = model.get_weights() if model.built else []
    history = fit(model, *args, **{**kwargs, "shuffle": False, "verbose": 0})
    record.append(
        {
            "epochs": history.epoch,
            "history": {k: np.array(v).tolist() for k, v in history.history.items()},
            "initial": [weight.tolist() for weight in initial],
            "weights": [weight.tolist() for weight in model.get_weights()],
        }
    )
    with open(path, "w", encoding="utf-8") as file:
        json.dump(record, file)
    return history


keras.Model.fit = recorded
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    keras.Model.fit = fit
