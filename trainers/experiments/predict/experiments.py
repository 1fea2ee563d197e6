"""The short runs that a prediction is fitted to.

The runs vary three things: the number of replicas, the batch and the size of gradients.
Replicas and batch are flags of the user. The size of gradients varies by ballast
(padding weights), not by another layer width or by an isolated sum of gradients, for
three reasons. Ballast fits any model, also a model of the user. The timed run is an
ordinary one, with all that its strategy does with gradients. One device measures the
compute time of ballast, which is then subtracted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from strategies.common.errors import UsageError
from trainers.config.config import Config
from trainers.experiments.arms import Arm, expand_update_modes, of_a_run, under

REFERENCE = "one_device"

# The median of this many steps changes little from run to run.
_DEFAULT_TRAIN_STEPS = 300
# More than four replicas on a few cores measure little but their contention.
_MOST_REPLICAS_HERE = 4
_PARTS_OF_A_BATCH = (1, 2, 4, 8)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """A run whose step time is measured.

    Attributes:
      arm: Name of the arm whose model is fitted to the run; REFERENCE for one device.
      num_replicas: Number of replicas of the run.
      config: Configuration of the run, without its folder.
    """

    arm: str
    num_replicas: int
    config: Config

    @property
    def name(self) -> str:
        """Name of the run folder, unique in a prediction."""
        size = self.config.length.global_batch_size
        ballast = "-ballast" if self.config.model.ballast else ""
        return f"{self.arm}-{self.num_replicas}-of-{size}{ballast}"

    @property
    def examples(self) -> float:
        """Number of examples that each replica computes for an update."""
        shares = self.config.strategy.num_shards(self.num_replicas)
        return self.config.length.global_batch_size / shares


def arms_of(config: Config) -> tuple[Arm, ...]:
    """Returns the arms to predict: --strategies, with each update mode.

    Raises:
      UsageError: A strategy does not fit the settings, or does not exchange gradients.
    """
    arms = expand_update_modes(config, _shared(config))
    for arm in arms:
        strategy = arm.config.strategy
        if strategy.traits.exchange == "none" or strategy.averaged == "parameters":
            raise UsageError(
                f"--strategies={strategy.strategy} cannot be predicted: there is a "
                "model for strategies whose replicas exchange gradients; leave it out."
            )
    return arms


def on_one_device(config: Config) -> tuple[Experiment, ...]:
    """Returns runs of one device with the batch, and with parts of it like a replica's.

    The last run has ballast and the smallest part, where ballast is the largest part of
    the step.
    """
    shared = under(REFERENCE, _shared(config))
    size = shared.length.global_batch_size
    sizes = sorted({max(size // part, 1) for part in _PARTS_OF_A_BATCH})
    configs = [shared.replace(global_batch_size=size) for size in sizes]
    return tuple(
        Experiment(arm=REFERENCE, num_replicas=1, config=each)
        # Sizes ascend: the first configuration has the smallest part of the batch.
        for each in (*configs, _with_ballast(configs[0]))
    )


def of_an_arm(arm: Arm, num_gpus: int) -> tuple[Experiment, ...]:
    """Returns runs that vary the number of replicas, the batch and the gradient size.

    There are several numbers of replicas, two batches and two sizes of gradients.

    Raises:
      UsageError: This machine or the batch is too small for any conclusion.
    """
    size = arm.config.length.global_batch_size
    most = min(num_gpus or _MOST_REPLICAS_HERE, _MOST_REPLICAS_HERE, size)
    if most < 3:
        raise UsageError(
            f"--mode=predict needs runs with 2 and 3 replicas, and --global_batch_size="
            f"{size} on {num_gpus or 'no'} GPU(s) allows for {most}: raise the batch, "
            "or hide the GPUs with CUDA_VISIBLE_DEVICES=-1."
        )
    return tuple(
        Experiment(arm=arm.name, num_replicas=count, config=config)
        for count in range(2, most + 1)
        for config in _with(count, arm, most)
    )


def _with(count: int, arm: Arm, most: int) -> Iterator[Config]:
    """Yields the whole batch, half of it, and the whole batch with ballast.

    Half of the batch is run with the fewest and the most replicas, ballast where
    contention is highest. There are two runs of each kind, and two of each number of
    replicas, so that any run can be predicted from the others.
    """
    whole = with_replicas(arm.config, count)
    yield whole
    size = whole.length.global_batch_size
    # Each replica needs an example, even of the largest number of replicas.
    half = whole.replace(global_batch_size=max(size // 2, most))
    if count in (2, most) and half != whole:
        yield half
    if count >= most - 1:
        yield _with_ballast(whole)


def with_replicas(config: Config, count: int) -> Config:
    """Returns a configuration with another number of replicas."""
    # The replicas of a multi-process strategy are its workers.
    many = "num_workers" if config.strategy.traits.multi_process else "num_replicas"
    return config.replace(**{many: count})


def _shared(config: Config) -> Config:
    """Returns the settings that all runs share, without work outside the steps."""
    shared = of_a_run(config)
    shared = shared.replace(
        num_replicas=None,
        num_workers=None,
        histogram_every_steps=None,
        eval_every_steps=shared.report.eval_every_steps or None,
    )
    if shared.length.train_steps is None and shared.length.epochs is None:
        shared = shared.replace(train_steps=_DEFAULT_TRAIN_STEPS)
    return shared


def _with_ballast(config: Config) -> Config:
    """Returns a configuration with ballast, without the export it does not allow."""
    return config.replace(ballast=True, export=None)
