"""Writes the program of a seed.

Left out is what differs from Keras's `fit` for a documented reason
(docs/keras_programs_in_detail.md): random layers, another order of examples, data of
unknown length, batch normalization of shards, losses that a step of the model's own
divides by a number of the batch.
"""

import sys

from tests.random_programs.calls import by_output, compile_call, fit_call
from tests.random_programs.chance import Chance
from tests.random_programs.hidden import hidden
from tests.random_programs.inputs import Encoded, encoded
from tests.random_programs.outputs import Output, output

_IMPORTS = """
import keras
import numpy as np
from keras import layers

from tests.random_programs import parts

keras.utils.set_random_seed({seed})
draw = np.random.default_rng({seed})
N = {num_examples}
"""
# What Keras divides by a number of the batch, or regularizes beside a sum.
_OF_BATCHES = ("ignore_class", "reduction='sum'", "mean_with_sample_weight")
_OWN_MODELS = (
    *("TapeModel", "TrackingModel", "PenalizedModel", "ReportingModel"),
    "ModelWithoutMode",
)


def program(
    seed: int,
    *,
    can_normalize: bool = True,
    is_accumulated: bool = False,
    last_batch: int | None = None,
) -> str:
    """Returns a program.

    Args:
      seed: Seed of all choices, and of the program's random numbers.
      can_normalize: True if layers may normalize over the global batch.
      is_accumulated: True if optimizers may accumulate gradients.
      last_batch: Number of batches after which its process is killed once; None to let
        it run.
    """
    chance = Chance(seed)
    num_examples = chance.pick(33, 37, 48, 50, 64)
    batch_size = chance.pick(None, 7, 8, 12, 16, 32)
    chance.add(*_IMPORTS.format(seed=seed, num_examples=num_examples).splitlines())
    inputs, outputs = _layers(chance, can_normalize)
    own = _own_model(chance, inputs, outputs)
    has_names = len(outputs) > 1 and chance.happens(0.5)
    found = by_output(chance, [each.name for each in outputs], has_names)
    names = [f"in{index}" for index in range(len(inputs))]
    chance.add(f"model = {own or 'keras.Model'}([{', '.join(names)}], {found})")
    # A loss of whole batches is multiplied by the mean of the weights.
    can_weigh = len(outputs) == 1 and "mean_of_squares" not in outputs[0].loss
    has_weights = can_weigh and chance.happens(0.5)
    _data(chance, inputs, outputs, has_names, has_weights)

    def compiled() -> str:
        return compile_call(
            chance,
            outputs,
            has_names=has_names,
            is_accumulated=is_accumulated,
            can_weigh_metrics=own != "parts.TapeModel",
        )

    def fit(compiled: str) -> None:
        call = fit_call(
            chance,
            num_examples=num_examples,
            batch_size=batch_size,
            compiled=compiled,
            class_weights=not (own or has_weights)
            and outputs[0].has_classes
            and len(outputs) == 1,
            has_weights=has_weights,
            last_batch=last_batch,
        )
        chance.add(call, "model.evaluate(held_out_x, held_out_y, verbose=0)")

    first = compiled()
    chance.add(first)
    fit(first)
    chance.add("model.predict(held_out_x, verbose=0)")
    if chance.happens(0.5):
        second = _change(chance, first, compiled, is_saved=not own)
        chance.add("x, y, weights = examples()")
        fit(second)
    return "\n".join(chance.lines) + "\n"


def _layers(chance: Chance, can_normalize: bool) -> tuple[list[Encoded], list[Output]]:
    """Adds all layers of the model."""
    inputs = [
        encoded(chance, index, can_normalize)
        for index in range(chance.pick(1, 1, 1, 1, 2))
    ]
    x, width = inputs[0].vector, sum(each.width for each in inputs)
    if len(inputs) > 1:
        vectors = ", ".join(each.vector for each in inputs)
        x = chance.new(f"layers.Concatenate()([{vectors}])")
    for _ in range(chance.pick(0, 1, 2, 3)):
        x, width = hidden(chance, x, width, can_normalize)
    only = inputs[0] if len(inputs) == 1 else None
    count = chance.pick(1, 1, 1, 1, 2)
    return inputs, [output(chance, index, x, only) for index in range(count)]


def _own_model(chance: Chance, inputs: list[Encoded], outputs: list[Output]) -> str:
    """Returns the class of the model; empty for Keras's."""
    is_masked = any("zero" in line or "Masking" in line for line in chance.lines)
    divides = any(words in outputs[0].loss for words in _OF_BATCHES)
    if len(outputs) > 1 or divides or (is_masked and outputs[0].length):
        return ""
    return f"parts.{chance.pick(*_OWN_MODELS)}" if chance.happens(0.3) else ""


def _data(
    chance: Chance,
    inputs: list[Encoded],
    outputs: list[Output],
    has_names: bool,
    has_weights: bool,
) -> None:
    """Adds examples to train on and to hold out."""
    x = [each.data for each in inputs]
    y = [each.labels for each in outputs]
    length = outputs[0].length
    # Weights [n] of losses [n, t] are refused.
    size = f"(N, {length})" if length else "N"
    weights = f"draw.random({size})"
    if chance.happens(0.4):
        weights += f" * (draw.random({size}) > 0.4)"
    chance.add(
        "def examples():",
        f"    x = {x[0] if len(x) == 1 else '[' + ', '.join(x) + ']'}",
        f"    y = {_labels(y, has_names)}",
        f"    return x, y, {weights if has_weights else None}",
        "x, y, weights = examples()",
        "held_out_x, held_out_y, held_out_weights = examples()",
    )


def _labels(labels: list[str], has_names: bool) -> str:
    if has_names:
        named = (f"'out{index}': {each}" for index, each in enumerate(labels))
        return "{" + ", ".join(named) + "}"
    return labels[0] if len(labels) == 1 else f"[{', '.join(labels)}]"


def _change(chance: Chance, compiled: str, compile_again, is_saved: bool) -> str:
    """Adds a change of the model between two calls of fit.

    Returns:
      The call of `compile` that the second one is trained with.
    """
    change = chance.pick("nothing", "compile", "freeze", "rate", "save", "batch", "set")
    if change in ("compile", "freeze"):
        if change == "freeze":
            chance.add(
                "for layer in model.layers[1::2]:", "    layer.trainable = False"
            )
        compiled = compile_again()
        chance.add(compiled)
    elif change == "rate" and "schedules." not in compiled and "Ramp" not in compiled:
        chance.add("model.optimizer.learning_rate = 0.002")
    elif change == "save" and is_saved:
        chance.add("model.save('model.keras')")
        loaded = "keras.saving.load_model('model.keras', safe_mode=False)"
        chance.add(f"model = {loaded}")
    elif change == "batch":
        chance.add("model.train_on_batch(x, y)")
    elif change == "set":
        chance.add("model.set_weights([0.9 * each for each in model.get_weights()])")
    return compiled


if __name__ == "__main__":
    sys.stdout.write(program(int(sys.argv[1])))
