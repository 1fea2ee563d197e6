"""Which short runs a prediction is fitted to.

There are three things to vary. Replicas and batch are a user's own flags. For the size
of gradients there is ballast, and not another width or a sum of gradients by itself: it
fits any model, one of a user's own too; what is timed is an ordinary run, whatever its
strategy does with gradients; and what it computes can be had from one device, to be
taken off.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from strategies.common.errors import UsageError
from trainers.config.config import Config
from trainers.experiments.arms import Arm, in_each_way_of_updating, of_a_run, under

REFERENCE = "one_device"

# The median of as many steps changes little from run to run.
_DEFAULT_TRAIN_STEPS = 300
# Beyond four replicas on a few cores one measures little but how they crowd.
_MOST_REPLICAS_HERE = 4
_PARTS_OF_A_BATCH = (1, 2, 4, 8)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """A run whose step time is measured.

    Attributes:
      arm: whose model is fitted to it; REFERENCE for one device.
      num_replicas: of the run.
      config: of the run, but for its folder.
    """

    arm: str
    num_replicas: int
    config: Config

    @property
    def name(self) -> str:
        """Of its folder, unique in a prediction."""
        size = self.config.length.global_batch_size
        ballast = "-ballast" if self.config.model.ballast else ""
        return f"{self.arm}-{self.num_replicas}-of-{size}{ballast}"

    @property
    def examples(self) -> float:
        """What each replica computes for an update."""
        shares = self.config.strategy.num_shares(self.num_replicas)
        return self.config.length.global_batch_size / shares


def arms_of(config: Config) -> tuple[Arm, ...]:
    """What is predicted: --strategies, each way of updating by itself.

    Raises:
      UsageError: a strategy does not fit the settings, or does not exchange gradients.
    """
    arms = in_each_way_of_updating(config, _shared(config))
    for arm in arms:
        strategy = arm.config.strategy
        if strategy.traits.exchange == "none" or strategy.averaged == "parameters":
            raise UsageError(
                f"--strategies={strategy.strategy} cannot be predicted: there is a "
                "model for strategies whose replicas exchange gradients; leave it out."
            )
    return arms


def on_one_device(config: Config) -> tuple[Experiment, ...]:
    """One device with the batch, and with parts of it as large as those of replicas.

    The last has ballast, and the smallest part, of which the ballast is most.
    """
    shared = under(REFERENCE, _shared(config))
    size = shared.length.global_batch_size
    sizes = sorted({max(size // part, 1) for part in _PARTS_OF_A_BATCH})
    configs = [shared.replace(global_batch_size=size) for size in sizes]
    return tuple(
        Experiment(arm=REFERENCE, num_replicas=1, config=each)
        for each in (*configs, _with_ballast(configs[0]))
    )


def of_an_arm(arm: Arm, num_gpus: int) -> tuple[Experiment, ...]:
    """An arm with several numbers of replicas, two batches and two sizes of gradients.

    Raises:
      UsageError: this machine or the batch is too small to tell anything.
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
    """The batch; half of it at both ends, and ballast where replicas crowd most.

    Two of each, and of each number of replicas, so that any run can be predicted from
    the others.
    """
    whole = with_replicas(arm.config, count)
    yield whole
    size = whole.length.global_batch_size
    # Each of the most replicas needs an example.
    half = whole.replace(global_batch_size=max(size // 2, most))
    if count in (2, most) and half != whole:
        yield half
    if count >= most - 1:
        yield _with_ballast(whole)


def with_replicas(config: Config, count: int) -> Config:
    """The same with so many of what the strategy calls replicas."""
    many = "num_workers" if config.strategy.traits.multi_process else "num_replicas"
    return config.replace(**{many: count})


def _shared(config: Config) -> Config:
    """What all runs share, with nothing that takes time beside the steps."""
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
    """Without what cannot be together with it, and takes time besides."""
    return config.replace(ballast=True, export=None)
