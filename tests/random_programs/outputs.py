"""Outputs of a model, with labels, losses and metrics that fit them."""

from collections.abc import Sequence
from typing import NamedTuple

from tests.random_programs.chance import Chance
from tests.random_programs.inputs import Encoded, regularized


class Output(NamedTuple):
    """An output.

    Attributes:
      name: Variable of the output.
      labels: Expression for the labels.
      loss: Expression for the loss.
      metrics: Expressions of metrics that fit.
      has_classes: True if `class_weight` may be given.
      length: Length of the sequence that each example has a label for; None for one.
    """

    name: str
    labels: str
    loss: str
    metrics: Sequence[str]
    has_classes: bool = False
    length: int | None = None


def output(chance: Chance, index: int, x: str, of_input: Encoded | None) -> Output:
    """Adds an output after a vector, or after the sequence of the only input."""
    has_sequence = of_input is not None and of_input.sequence is not None
    weights = {"numbers": 3.0, "binary": 2.0, "classes": 3.0, "one_hot": 2.0}
    kind = chance.weighted({**weights, "tags": 2.0 if has_sequence else 0.0})
    name = f"out{index}"
    if kind == "tags":
        assert of_input is not None
        return _tags(chance, name, of_input)
    make = {"numbers": _numbers, "binary": _binary}
    make |= {"classes": _classes, "one_hot": _one_hot}
    return make[kind](chance, name, x)


def _numbers(chance: Chance, name: str, x: str) -> Output:
    width = chance.pick(1, 1, 2, 3)
    is_flat = width == 1 and chance.happens(0.4)
    size = "N" if is_flat else f"(N, {width})"
    positive = ("'poisson'", "'msle'", "'mape'")
    loss = chance.pick(
        *("'mse'", "'mae'", "keras.losses.Huber(delta=0.6)", "'log_cosh'", *positive),
        "keras.losses.MeanSquaredError(reduction='sum')",
        "keras.losses.MeanAbsoluteError(reduction='mean')",
        "keras.losses.MeanSquaredError(reduction='mean_with_sample_weight')",
        *("parts.pinball", "parts.mean_of_squares", "parts.sums_of_squares"),
        *(["'cosine_similarity'"] if width > 1 else []),
    )
    activation = "'softplus'" if loss in positive else "None"
    more = regularized(chance)
    _add(chance, name, x, width, f"activation={activation}{more}")
    is_positive = loss in positive
    labels = (
        f"draw.random({size}) + 0.5" if is_positive else f"draw.normal(size={size})"
    )
    metrics = [
        *("'mae'", "'mse'", "keras.metrics.RootMeanSquaredError()"),
        *("keras.metrics.MeanAbsoluteError(name='mine')", "parts.MeanSize()"),
        *("keras.metrics.LogCoshError()", "parts.power_of_error"),
        "keras.metrics.MeanMetricWrapper(parts.power_of_error, name='wrapped')",
    ]
    if not is_flat:
        metrics.append("keras.metrics.R2Score()")
    if width > 1:
        metrics += ["'cosine_similarity'", "keras.metrics.PearsonCorrelation()"]
    return Output(name, labels, loss, metrics)


def _binary(chance: Chance, name: str, x: str) -> Output:
    has_logits = chance.happens(0.5)
    width = chance.pick(1, 1, 3)
    is_flat = width == 1 and chance.happens(0.3)
    logits = f"from_logits={has_logits}"
    loss = chance.pick(
        f"keras.losses.BinaryCrossentropy({logits}, label_smoothing=0.1)",
        f"keras.losses.BinaryCrossentropy({logits}, reduction='sum')",
        f"keras.losses.BinaryFocalCrossentropy({logits}, apply_class_balancing=True)",
        *(["'hinge'", "keras.losses.SquaredHinge()"] if has_logits else []),
        *([] if has_logits else ["'binary_crossentropy'"]),
    )
    _add(chance, name, x, width, f"activation={None if has_logits else 'sigmoid'!r}")
    size = "N" if is_flat else f"(N, {width})"
    dtype = chance.pick("int64", "int32", "float32", "float64")
    labels = f"draw.integers(0, 2, size={size}).astype({dtype!r})"
    metrics = [
        *("'accuracy'", "'acc'", "'mse'"),
        f"keras.metrics.BinaryAccuracy(threshold={0.0 if has_logits else 0.4})",
        f"keras.metrics.AUC(num_thresholds=20, {logits})",
    ]
    if has_logits:
        metrics.append("keras.metrics.Hinge()")
    else:
        metrics += [
            *("keras.metrics.Precision()", "keras.metrics.Recall(name='found')"),
            *("keras.metrics.TruePositives()", "keras.metrics.FalseNegatives()"),
            "keras.metrics.PrecisionAtRecall(0.5, num_thresholds=30)",
            "keras.metrics.BinaryIoU([0, 1], threshold=0.5)",
        ]
        if not is_flat:
            metrics.append("keras.metrics.F1Score(threshold=0.5)")
    return Output(name, labels, loss, metrics, has_classes=width == 1)


def _classes(chance: Chance, name: str, x: str) -> Output:
    count, logits = _softmax(chance, name, x)
    kind = "keras.losses.SparseCategoricalCrossentropy"
    loss = chance.pick(
        *(f"{kind}({logits})", f"{kind}({logits}, reduction='sum')"),
        f"{kind}({logits}, ignore_class=1)",
    )
    size = chance.pick("N", "N", "(N, 1)")
    dtype = chance.pick("int64", "int32", "uint8", "float64")
    labels = f"draw.integers(0, {count}, size={size}).astype({dtype!r})"
    return Output(name, labels, loss, _sparse_metrics(logits), has_classes=True)


def _one_hot(chance: Chance, name: str, x: str) -> Output:
    count, logits = _softmax(chance, name, x)
    kind = "keras.losses.CategoricalCrossentropy"
    loss = chance.pick(
        f"{kind}({logits}, label_smoothing={chance.pick(0.0, 0.1)})",
        f"{kind}({logits}, reduction='mean_with_sample_weight')",
        f"keras.losses.CategoricalFocalCrossentropy({logits})",
        "'categorical_hinge'",
        *([] if "True" in logits else ["'kl_divergence'", "'mse'"]),
    )
    metrics = [
        *("'accuracy'", "keras.metrics.CategoricalAccuracy()"),
        f"keras.metrics.CategoricalCrossentropy({logits})",
        "keras.metrics.F1Score(average='macro')",
        f"keras.metrics.OneHotMeanIoU({count})",
    ]
    if "False" in logits:
        metrics += [
            "keras.metrics.KLDivergence()",
            "keras.metrics.AUC(multi_label=True, num_thresholds=15, "
            f"num_labels={count})",
        ]
    labels = f"np.eye({count})[draw.integers(0, {count}, size=N)]"
    return Output(name, labels, loss, metrics, has_classes=True)


def _tags(chance: Chance, name: str, of_input: Encoded) -> Output:
    count, logits = _softmax(chance, name, str(of_input.sequence))
    kind = "keras.losses.SparseCategoricalCrossentropy"
    loss = chance.pick(f"{kind}({logits})", f"{kind}({logits}, ignore_class=0)")
    labels = f"draw.integers(0, {count}, size=(N, {of_input.length}))"
    metrics = [
        *_sparse_metrics(logits),
        f"keras.metrics.MeanIoU({count}, sparse_y_pred=False)",
    ]
    return Output(name, labels, loss, metrics, length=of_input.length)


def _sparse_metrics(logits: str) -> list[str]:
    return [
        *("'accuracy'", "keras.metrics.SparseCategoricalAccuracy(name='correct')"),
        f"keras.metrics.SparseCategoricalCrossentropy({logits}, name='entropy')",
    ]


def _softmax(chance: Chance, name: str, x: str) -> tuple[int, str]:
    """Adds an output of probabilities or logits; returns its width and which."""
    count = chance.pick(3, 4)
    has_logits = chance.happens(0.5)
    _add(chance, name, x, count, f"activation={None if has_logits else 'softmax'!r}")
    return count, f"from_logits={has_logits}"


def _add(chance: Chance, name: str, x: str, width: int, more: str) -> None:
    chance.add(f"{name} = layers.Dense({width}, name={name!r}, {more})({x})")
