"""Inputs of a model, and the layers that make one vector [n, width] of each."""

from typing import NamedTuple

from tests.random_programs.chance import Chance

ACTIVATIONS = (
    *("'relu'", "'tanh'", "'selu'", "'gelu'", "'swish'", "'elu'", "'softsign'"),
    "None",
)
_REGULARIZERS = (
    *("'l2'", "keras.regularizers.L1(0.003)"),
    *("keras.regularizers.L1L2(0.001, 0.01)", "keras.regularizers.L2(0.02)"),
)
_CONSTRAINTS = (
    *("keras.constraints.MaxNorm(0.7)", "keras.constraints.UnitNorm()"),
    "keras.constraints.NonNeg()",
)


class Encoded(NamedTuple):
    """An input.

    Attributes:
      data: Expression for the examples.
      vector: Variable of shape [n, width].
      width: Size of the vector.
      sequence: Variable of shape [n, length, channels], or None.
      length: Length of the sequence.
    """

    data: str
    vector: str
    width: int
    sequence: str | None = None
    length: int = 0


def encoded(chance: Chance, index: int, can_normalize: bool) -> Encoded:
    """Adds one input, and layers after it."""
    kind = chance.weighted({"vector": 4, "tokens": 2, "series": 1.5, "image": 1.5})
    if kind == "vector":
        return _vector(chance, index)
    if kind == "image":
        return _image(chance, index, can_normalize)
    return _tokens(chance, index) if kind == "tokens" else _series(chance, index)


def regularized(chance: Chance) -> str:
    """Returns further arguments of a layer with a kernel."""
    found = ""
    if chance.happens(0.15):
        found += f", kernel_regularizer={chance.pick(*_REGULARIZERS)}"
    if chance.happens(0.08):
        found += ", bias_regularizer='l2'"
    if chance.happens(0.08):
        found += ", activity_regularizer='l2'"
    if chance.happens(0.1):
        found += f", kernel_constraint={chance.pick(*_CONSTRAINTS)}"
    return found


def dense(chance: Chance, width: int) -> str:
    activation = chance.pick(*ACTIVATIONS)
    return f"layers.Dense({width}, activation={activation}{regularized(chance)})"


def _input(chance: Chance, index: int, shape: str, dtype: str = "float64") -> str:
    name = f"in{index}"
    chance.add(f"{name} = keras.Input({shape}, name={name!r}, dtype={dtype!r})")
    return name


def _vector(chance: Chance, index: int) -> Encoded:
    width = chance.pick(3, 4, 6)
    dtype = "float32" if chance.happens(0.1) else "float64"
    vector = _input(chance, index, f"({width},)", dtype)
    if chance.happens(0.2):
        layer = chance.new("layers.Normalization()")
        chance.add(f"{layer}.adapt(2 * draw.normal(size=(50, {width})) + 1)")
        vector = chance.new(f"{layer}({vector})")
    return Encoded(f"draw.normal(size=(N, {width}))", vector, width)


def _tokens(chance: Chance, index: int) -> Encoded:
    length = chance.pick(4, 6)
    dtype = chance.pick("int64", "int32", "float64")
    name = _input(chance, index, f"({length},)", dtype)
    more = ", mask_zero=True" if chance.happens(0.5) else ""
    more += ", embeddings_regularizer='l2'" if chance.happens(0.1) else ""
    sequence = chance.new(f"layers.Embedding(9, 5{more})({name})")
    data = f"draw.integers(0, 9, size=(N, {length})).astype({dtype!r})"
    return _of_sequence(chance, data, sequence, length)


def _series(chance: Chance, index: int) -> Encoded:
    length, channels = chance.pick(4, 6), chance.pick(2, 3)
    sequence = _input(chance, index, f"({length}, {channels})")
    data = f"draw.normal(size=(N, {length}, {channels}))"
    if chance.happens(0.2):
        sequence = chance.new(f"layers.Masking()({sequence})")
        data += f" * (draw.random(size=(N, {length}, 1)) > 0.3)"
    return _of_sequence(chance, data, sequence, length)


def _of_sequence(chance: Chance, data: str, sequence: str, length: int) -> Encoded:
    if chance.happens(0.3):
        layer = chance.pick(
            "layers.LSTM(4, return_sequences=True)",
            "layers.Dense(4, activation='tanh')",
            "layers.TimeDistributed(layers.Dense(4))",
            "layers.Conv1D(4, 2, padding='causal')",
            "layers.Bidirectional(layers.GRU(2, return_sequences=True))",
        )
        sequence = chance.new(f"{layer}({sequence})")
    elif chance.happens(0.3):
        more = ", use_causal_mask=True" if chance.happens(0.4) else ""
        # The gradient of the bias of its keys is rounding alone.
        attention = "layers.MultiHeadAttention(2, 3, use_bias=False)"
        sequence = chance.new(f"{attention}({sequence}, {sequence}{more})")
    pooled = chance.pick(
        *("layers.LSTM(4)", "layers.GRU(4, reset_after=False)"),
        *("layers.SimpleRNN(4)", "layers.Bidirectional(layers.LSTM(2))"),
        *("layers.GlobalAveragePooling1D()", "layers.GlobalMaxPooling1D()"),
        "layers.GRU(3, go_backwards=True)",
    )
    vector = chance.new(f"{dense(chance, 5)}({pooled}({sequence}))")
    return Encoded(data, vector, 5, sequence, length)


def _image(chance: Chance, index: int, can_normalize: bool) -> Encoded:
    image = _input(chance, index, "(6, 6, 2)")
    convolution = f"activation={chance.pick(*ACTIVATIONS)}{regularized(chance)}"
    options = [
        f"layers.Conv2D(4, 3, padding='same', {convolution})",
        "layers.SeparableConv2D(4, 3, padding='same')",
        "layers.DepthwiseConv2D(3, padding='same')",
        "layers.Conv2D(4, 3, strides=2)",
        "layers.Conv2DTranspose(3, 3, padding='same')",
        "layers.ZeroPadding2D()",
        "layers.UpSampling2D()",
        "layers.Conv2D(4, 2, dilation_rate=2)",
        "layers.SpatialDropout2D(0.0)",
    ]
    if can_normalize:
        options.append("layers.BatchNormalization(synchronized=True)")
    for _ in range(chance.pick(1, 2)):
        image = chance.new(f"{chance.pick(*options)}({image})")
    pooled = chance.pick(
        *("layers.GlobalAveragePooling2D()", "layers.GlobalMaxPooling2D()"),
        "layers.Flatten()",
    )
    vector = chance.new(f"{dense(chance, 5)}({pooled}({image}))")
    return Encoded("draw.normal(size=(N, 6, 6, 2))", vector, 5)
