"""Ablations: features that can make strategies differ, switched off."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainers.config.config import Config
from trainers.run_dir.step_recording import RecordedStep


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """One feature of training that can be switched off.

    Attributes:
      name: Name of the feature, printed after "without".
      settings: Settings that switch the feature off.
      explanation: Likely cause if the difference disappears without the feature.
    """

    name: str
    settings: Mapping[str, Any]
    explanation: str

    @property
    def folder(self) -> str:
        """Name of the feature as part of the name of a folder."""
        return re.sub(r"\W+", "_", self.name).strip("_")


def features_in_use(
    config: Config, step: RecordedStep, examples: Sequence[int], num_replicas: int
) -> list[Feature]:
    """Returns the features of a run that an ablation can switch off.

    Args:
      config: Configuration of the strategy's run.
      step: Any recorded step, which names random layers and layer state of the model.
      examples: Number of examples of every global batch.
      num_replicas: Number of replicas of the run.
    """
    strategy, off = config.strategy, config.model.disable_layers or ()
    # Keras names the layer state of batch normalization moving_mean and
    # moving_variance.
    has_statistics = any("moving_" in name for name in step.layer_state)
    found = [
        (_CLIPPING, config.optimizer.clip_global_norm is not None),
        # The model may be the user's, with random layers that no setting shows.
        (_dropout(config), bool(step.random_layers) and "dropout" not in off),
        (BATCH_NORMALIZATION, has_statistics and "batch_normalization" not in off),
        (_MIXED_PRECISION, config.model.dtype.startswith("mixed")),
        (_XLA, config.model.jit_compile == "on"),
        (_MICRO_BATCHES, strategy.gradient_accumulation_steps > 1),
        (
            _uneven_batches(config, num_replicas),
            any(n % num_replicas for n in examples),
        ),
        (_narrow_reduction(config), strategy.all_reduce_dtype != "as_is"),
    ]
    return [feature for feature, is_in_use in found if is_in_use]


def more_digits(config: Config) -> Feature | None:
    """Returns the feature for a difference that disappears in float64.

    It is None if the run is in float64 already.
    """
    if config.model.dtype == "float64":
        return None
    return Feature(
        name="rounding to " + config.model.dtype,
        settings={"dtype": "float64"},
        explanation="nothing is wrong but the number of digits: small differences grow "
        "with every step; verify with --dtype=float64, or fewer --train_steps",
    )


_CLIPPING = Feature(
    name="clipping",
    settings={"clip_global_norm": None},
    explanation="gradients have to be clipped once, after the sum over replicas; "
    "before it each replica's part is bounded instead of their sum",
)
BATCH_NORMALIZATION = Feature(
    name="batch normalization",
    settings={"disable_layers": ("batch_normalization",)},
    explanation="every replica normalizes its own rows of the global batch, and "
    "each micro-batch by itself, so that several rightly differ from one",
)
_MIXED_PRECISION = Feature(
    name="mixed precision",
    settings={"dtype": "float32"},
    explanation="every replica rounds its gradient to 16 bits before the sum",
)
_XLA = Feature(
    name="XLA",
    settings={"jit_compile": "off"},
    explanation="the compiler computes something else for one of the two",
)
_MICRO_BATCHES = Feature(
    name="micro-batches",
    settings={"gradient_accumulation_steps": 1},
    explanation="their gradients have to be added up, each in proportion to its "
    "examples, before anything else is done with them",
)


def _dropout(config: Config) -> Feature:
    strategy = config.strategy
    has_parts = strategy.gradient_accumulation_steps > 1
    has_parts = has_parts or strategy.traits.is_model_parallel
    parts = "replica and micro-batch" if has_parts else "replica"
    explanation = (
        f"masks depend on which {parts} an example falls to, so that several replicas "
        "rightly differ from one: add --set=model.replayable_random_numbers=true"
    )
    if config.model.replayable_random_numbers:
        explanation = (
            "the masks are not those of the same examples, as where data come in "
            "another order or rows are no examples; otherwise they depend on seed, "
            "step and example alone"
        )
    return Feature(
        name="dropout",
        settings={"disable_layers": ("dropout",)},
        explanation=explanation,
    )


def _uneven_batches(config: Config, num_replicas: int) -> Feature:
    # The next smaller multiple of the number of replicas.
    size = max(config.length.global_batch_size // num_replicas, 1) * num_replicas
    return Feature(
        name="uneven batches",
        settings={"drop_last_batch": True, "global_batch_size": size},
        explanation="replicas with fewer examples count for more than their part: "
        "the sum has to be divided by the examples of the global batch, and means over "
        "replicas are not to be averaged",
    )


def _narrow_reduction(config: Config) -> Feature:
    return Feature(
        name=f"--all_reduce_dtype={config.strategy.all_reduce_dtype}",
        settings={"all_reduce_dtype": "as_is"},
        explanation="gradients are rounded on the wire, as was asked for",
    )


def switched_off(config: Config, features: Sequence[Feature], num_steps: int) -> Config:
    """Returns the configuration of a short run without some features."""
    settings: dict[str, Any] = {"disable_layers": config.model.disable_layers}
    for feature in features:
        for name, value in feature.settings.items():
            if name == "disable_layers":
                # Several features, and the user, can each switch off a kind of layer.
                value = (*(settings[name] or ()), *value)
            settings[name] = value
    return config.replace(train_steps=num_steps, epochs=None, **settings)
