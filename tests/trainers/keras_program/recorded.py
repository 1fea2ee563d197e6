"""Runs a Keras program, and writes what its calls of fit, evaluate and predict give.

  python recorded.py RECORD.json FLOATX PROGRAM.py [ARGUMENTS...]

It is itself a Keras program, to be run with and without --script. Examples are not
shuffled: otherwise the batches would differ from Keras's own fit.
"""

import json
import runpy
import sys

import keras
import numpy as np
import tensorflow as tf

path, floatx, *sys.argv = sys.argv[1:]
keras.config.set_floatx(floatx)
methods = {name: getattr(keras.Model, name) for name in ("fit", "evaluate", "predict")}
record: list[dict] = []
is_within_fit = False


def plain(value):
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return np.array(value, "float64").tolist()


def write():
    with open(path, "w", encoding="utf-8") as file:
        json.dump(record, file)


def fit(model, *args, **kwargs):
    global is_within_fit
    optimizer = model.optimizer
    if model.built and optimizer is not None and not optimizer.built:
        # An optimizer that fit builds in its traced step makes its variables anew in
        # every step, as ScheduleFreeAdamW does (tests/test_tensorflow_facts.py).
        optimizer.build(model.trainable_variables)
    # A model that fit builds has none.
    initial = model.get_weights() if model.built else []
    is_within_fit = True
    try:
        given = {**kwargs, "shuffle": False, "verbose": 0}
        history = methods["fit"](model, *args, **given)
    finally:
        is_within_fit = False
    record.append(
        {
            "epochs": history.epoch,
            "history": {k: np.array(v).tolist() for k, v in history.history.items()},
            # Of callbacks that keep logs.
            "logs": plain([x for c in kwargs.get("callbacks") or [] for x in seen(c)]),
            "initial": [weight.tolist() for weight in initial],
            "weights": [weight.tolist() for weight in model.get_weights()],
            # Results of evaluate and predict up to the next call.
            "after": [],
        }
    )
    write()
    return history


def seen(callback):
    return getattr(callback, "seen_logs", [])


def evaluate(model, *args, **kwargs):
    return noted(methods["evaluate"](model, *args, **kwargs))


def predict(model, *args, **kwargs):
    return noted(methods["predict"](model, *args, **kwargs))


def noted(result):
    if record and not is_within_fit:
        record[-1]["after"] += plain(tf.nest.flatten(result))
        write()
    return result


keras.Model.fit, keras.Model.evaluate, keras.Model.predict = fit, evaluate, predict
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    for name, method in methods.items():
        setattr(keras.Model, name, method)
