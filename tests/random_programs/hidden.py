"""Layers between the inputs and the outputs of a model."""

from tests.random_programs.chance import Chance
from tests.random_programs.inputs import dense, regularized


def hidden(chance: Chance, x: str, width: int, can_normalize: bool) -> tuple[str, int]:
    """Adds a layer or a few after a vector; returns the new vector and its width."""
    kind = chance.weighted({"dense": 6, "simple": 6, "joined": 3, "shared": 1.5})
    if kind == "dense":
        new_width = chance.pick(4, 5, 8)
        return chance.new(f"{dense(chance, new_width)}({x})"), new_width
    if kind == "simple":
        return chance.new(f"{_simple(chance, width, can_normalize)}({x})"), width
    if kind == "joined":
        gate = f"layers.Dense({width}, activation='sigmoid'{regularized(chance)})({x})"
        branch = f"layers.Add()([{x}, {dense(chance, width)}({x})])"
        frozen = f"layers.BatchNormalization(trainable=False)({x})"
        joined = chance.pick(f"{x} * {gate}", branch, frozen)
        return chance.new(joined), width
    inner = chance.new(
        f"keras.Sequential([layers.Dense({width}, activation='tanh'), "
        f"layers.Dense({width}{regularized(chance)})])"
    )
    x = chance.new(f"{inner}({x})")
    # Its weights get gradients twice.
    return chance.new(f"{inner}({x})") if chance.happens(0.4) else x, width


def _simple(chance: Chance, width: int, can_normalize: bool) -> str:
    options = [
        *("layers.LayerNormalization()", "layers.RMSNormalization()"),
        *("layers.GroupNormalization(groups=1)", "layers.UnitNormalization()"),
        "layers.PReLU(alpha_initializer='ones')",
        f"layers.EinsumDense('ab,bc->ac', output_shape={width}, bias_axes='c')",
        "layers.Lambda(lambda v: v * 0.5 + keras.ops.tanh(v))",
        f"parts.Penalty({chance.pick(0.1, 0.01)}, {chance.pick(True, False)})",
        f"layers.SpectralNormalization(layers.Dense({width}))",
        *("layers.ActivityRegularization(l2=0.01)", "layers.Dropout(0.0)"),
    ]
    if can_normalize:
        momentum = chance.pick(0.9, 0.5)
        more = chance.pick("", ", scale=False")
        options += 2 * [
            f"layers.BatchNormalization(synchronized=True, momentum={momentum}{more})"
        ]
    return chance.pick(*options)
