"""Ablations: features that can make strategies differ, switched off."""

from __future__ import annotations

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
    found = [
        _clipping(config),
        _dropout(config, step),
        _batch_normalization(config, step),
        _mixed_precision(config),
        _xla(config),
        _micro_batches(config),
        _uneven_batch(config, examples, num_replicas),
        _narrow_reduction(config),
    ]
    return [feature for feature in found if feature is not None]


def rounding(config: Config) -> Feature | None:
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


def _clipping(config: Config) -> Feature | None:
    if config.optimizer.clip_global_norm is None:
        return None
    return Feature(
        name="clipping",
        settings={"clip_global_norm": None},
        explanation="gradients have to be clipped once, after the sum over replicas; "
        "before it each replica's part is bounded instead of their sum",
    )


def _dropout(config: Config, step: RecordedStep) -> Feature | None:
    # The model may be the user's, with random layers that no setting shows.
    if not step.random_layers or _is_off(config, "dropout"):
        return None
    if config.model.replayable_random_numbers:
        explanation = (
            "the masks are not those of the same examples, as where data come in "
            "another order or rows are no examples; otherwise they depend on seed, "
            "step and example alone"
        )
    else:
        strategy = config.strategy
        in_parts = (
            strategy.gradient_accumulation_steps > 1
            or strategy.traits.is_model_parallel
        )
        parts = "replica and micro-batch" if in_parts else "replica"
        explanation = (
            f"masks depend on which {parts} an example falls to, so that several "
            "replicas rightly differ from one: add "
            "--set=model.replayable_random_numbers=true"
        )
    return Feature(
        name="dropout",
        settings={"disable_layers": ("dropout",)},
        explanation=explanation,
    )


def _batch_normalization(config: Config, step: RecordedStep) -> Feature | None:
    if _is_off(config, "batch_normalization"):
        return None
    # Keras names the layer state of batch normalization moving_mean and
    # moving_variance.
    if not any("moving_" in name for name in step.layer_state):
        return None
    return Feature(
        name="batch normalization",
        settings={"disable_layers": ("batch_normalization",)},
        explanation="every replica normalizes its own rows of the global batch, and "
        "each micro-batch by itself, so that several rightly differ from one",
    )


def _mixed_precision(config: Config) -> Feature | None:
    if not config.model.dtype.startswith("mixed"):
        return None
    return Feature(
        name="mixed precision",
        settings={"dtype": "float32"},
        # bfloat16 has 8 significant bits.
        explanation="every replica rounds its gradient to 8 bits before the sum",
    )


def _xla(config: Config) -> Feature | None:
    if config.model.jit_compile != "on":
        return None
    return Feature(
        name="XLA",
        settings={"jit_compile": "off"},
        explanation="the compiler computes something else for one of the two",
    )


def _micro_batches(config: Config) -> Feature | None:
    if config.strategy.gradient_accumulation_steps == 1:
        return None
    return Feature(
        name="micro-batches",
        settings={"gradient_accumulation_steps": 1},
        explanation="their gradients have to be added up, each in proportion to its "
        "examples, before anything else is done with them",
    )


def _uneven_batch(
    config: Config, examples: Sequence[int], num_replicas: int
) -> Feature | None:
    if all(count % num_replicas == 0 for count in examples):
        return None
    size = config.length.global_batch_size
    return Feature(
        name="uneven batches",
        settings={
            "drop_last_batch": True,
            # The next smaller multiple of the number of replicas.
            "global_batch_size": max(size // num_replicas, 1) * num_replicas,
        },
        explanation="replicas with fewer examples count for more than their part: "
        "the sum has to be divided by the examples of the global batch, and means over "
        "replicas are not to be averaged",
    )


def _narrow_reduction(config: Config) -> Feature | None:
    if config.strategy.all_reduce_dtype == "as_is":
        return None
    return Feature(
        name=f"--all_reduce_dtype={config.strategy.all_reduce_dtype}",
        settings={"all_reduce_dtype": "as_is"},
        explanation="gradients are rounded on the wire, as was asked for",
    )


def _is_off(config: Config, kind: str) -> bool:
    return kind in (config.model.disable_layers or ())


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
