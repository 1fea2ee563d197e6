"""The short runs that a prediction is fitted to.

The runs vary four things: the number of replicas, the batch, the size of gradients and
the bandwidth between hosts. Replicas and batch are flags of the user. Gradients grow by
ballast (padding weights), not by another layer width or by an isolated sum of
gradients, for three reasons. Ballast fits any model, also a model of the user. The
timed run is an ordinary one, with all that its strategy does with gradients. One device
measures the compute time of ballast, which is then subtracted. A small network has next
to no gradients, so that its steps are messages and software. Bandwidths come from
emulated networks.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from strategies.common.errors import UsageError
from strategies.common.text import as_argument, counted
from strategies.gradient_compression.choice import NONE, Compression
from trainers.config.config import Config
from trainers.config.data import DataConfig
from trainers.config.groups import defaults_of
from trainers.config.model import ModelConfig
from trainers.config.optimizer import OptimizerConfig
from trainers.experiments.arms import Arm, expand_update_modes, of_a_short_run, under

REFERENCE = "one_device"
# One device as the user asked for it. In all other runs XLA compiles as little as it
# does in steps that communicate.
ALONE = "one_device-as_asked"

# The median of this many steps changes little from run to run.
_DEFAULT_TRAIN_STEPS = 300
# More than four replicas on a few cores measure little but their contention.
MOST_REPLICAS_HERE = 4
# Multiple of the replicas that were measured, up to which predictions are shown to hold
# (`python -m benchmarks.growth`).
_SHOWN_TO_HOLD = 2
_PARTS_OF_A_BATCH = (1, 2, 4, 8)
_SMALL_BATCH = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Experiment:
    """A run whose step time is measured.

    Attributes:
      arm: Name of the arm whose model is fitted to the run; REFERENCE for one device.
      num_replicas: Number of replicas of the run.
      config: Configuration of the run, without its folder.
      size: Size of gradients, as in `Measurement`.
      repetition: Number of the run among equal ones, from 1.
    """

    arm: str
    num_replicas: int
    config: Config
    size: str = "own"
    repetition: int = 1

    @property
    def name(self) -> str:
        """Name of the run folder, unique in a prediction."""
        again = "" if self.repetition == 1 else f"-repetition-{self.repetition}"
        return f"{self.name_of_equal}{again}"

    @property
    def name_of_equal(self) -> str:
        """Name of the first of all equal runs."""
        batch, rate = self.config.length.global_batch_size, self.bandwidth_mbit
        size = "" if self.size == "own" else f"-{self.size}"
        link = "" if rate is None else f"-{rate:g}-mbit"
        return f"{self.arm}-{self.num_replicas}-of-{batch}{size}{link}"

    @property
    def bandwidth_mbit(self) -> float | None:
        return self.config.strategy.emulated_bandwidth_mbit

    @property
    def examples(self) -> float:
        """Number of examples that each replica computes for an update."""
        shares = self.config.strategy.num_shards(self.num_replicas)
        return self.config.length.global_batch_size / shares


def arms_of(config: Config) -> tuple[Arm, ...]:
    """Returns the arms to predict: --strategies, with each update mode.

    With --gradient_compression, strategies that take it have an arm without it and one
    with it, whose name ends with it.

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
    return tuple(each for arm in arms for each in _with_and_without_compression(arm))


def _with_and_without_compression(arm: Arm) -> tuple[Arm, ...]:
    compression = arm.config.strategy.compression
    if compression is None:
        return (arm,)
    whole = arm.config.replace(gradient_compression=NONE)
    return (
        dataclasses.replace(arm, config=whole),
        dataclasses.replace(arm, name=name_with(compression, arm.name)),
    )


def name_with(compression: Compression, arm: str) -> str:
    """Returns the name of an arm with a compression of its gradients."""
    # It is also the name of a folder, without a colon.
    return f"{arm}-{compression.setting.replace(':', '-')}"


def on_one_device(config: Config) -> tuple[Experiment, ...]:
    """Returns runs of one device with the batch, and with parts of it like a replica's.

    The last runs are of the small network, with ballast and the smallest part, where
    ballast is the largest part of the step, and as the user asked for.
    """
    asked = under(REFERENCE, _shared(config))
    shared = uncompiled(asked)
    batch = shared.length.global_batch_size
    least = _smallest_batch(shared, 1)
    # The largest first: data with fewer examples are refused at once.
    batches = sorted(
        {max(batch // part, least) for part in _PARTS_OF_A_BATCH}, reverse=True
    )
    configs = [shared.replace(global_batch_size=each) for each in batches]
    return (
        *(Experiment(REFERENCE, 1, each) for each in configs),
        Experiment(REFERENCE, 1, _with_ballast(configs[-1]), "ballast"),
        Experiment(REFERENCE, 1, _small(shared), "small"),
        Experiment(ALONE, 1, asked),
    )


def of_an_arm(arm: Arm, num_gpus: int) -> tuple[Experiment, ...]:
    """Returns runs that vary the number of replicas, the batch and the gradient size.

    There are several numbers of replicas, two batches and three sizes of gradients.

    Raises:
      UsageError: This machine or the batch is too small for any conclusion.
    """
    batch = arm.config.length.global_batch_size
    most = min(
        num_gpus or MOST_REPLICAS_HERE,
        MOST_REPLICAS_HERE,
        batch // _smallest_batch(arm.config, 1),
    )
    if most < 3:
        on_gpus, remedy = "", ""
        if num_gpus:
            on_gpus = f" on {counted(num_gpus, 'GPU')}"
            remedy = ", or hide the GPUs with CUDA_VISIBLE_DEVICES=-1"
        raise UsageError(
            "--mode=predict needs runs with 2 and 3 replicas, and --global_batch_size="
            f"{batch}{on_gpus} allows for {most}: raise the batch{remedy}."
        )
    arm = dataclasses.replace(arm, config=uncompiled(arm.config))
    return tuple(
        Experiment(arm.name, count, config, size)
        for count in range(2, most + 1)
        for config, size in _variations(count, arm, most)
    )


def _variations(count: int, arm: Arm, most: int) -> Iterator[tuple[Config, str]]:
    """Yields the whole batch, half of it, ballast and the small network.

    All are run with the fewest and the most replicas, so that there are two runs of
    each kind, and any run can be predicted from the others.
    """
    whole = with_replicas(arm.config, count)
    yield whole, "own"
    if count not in (2, most):
        return
    batch = max(whole.length.global_batch_size // 2, _smallest_batch(whole, most))
    half = whole.replace(global_batch_size=batch)
    if half != whole:
        yield half, "own"
    # What a compression computes depends on the shapes of the model's own gradients.
    if whole.strategy.compression is not None:
        return
    yield _with_ballast(whole), "ballast"
    yield _small(whole), "small"


def _smallest_batch(config: Config, count: int) -> int:
    """Returns the global batch with an example in each micro-batch of each replica."""
    return count * config.strategy.gradient_accumulation_steps


def most_predicted(measured_counts: Iterable[int]) -> int:
    """Returns the largest number of replicas for which predictions are made."""
    return _SHOWN_TO_HOLD * max(measured_counts)


def check_replicas(counts: Sequence[int], experiments: Sequence[Experiment]) -> None:
    """Raises UsageError if none of some numbers of replicas can be predicted."""
    most = most_predicted(e.num_replicas for e in experiments)
    if min(counts) > most:
        raise UsageError(
            f"--replicas={as_argument(counts)} is beyond {most}, up to which "
            "predictions are shown to hold: give a number up to that."
        )


def with_replicas(config: Config, count: int) -> Config:
    """Returns a configuration with another number of replicas."""
    # The replicas of a multi-process strategy are its workers.
    many = "num_workers" if config.strategy.traits.multi_process else "num_replicas"
    return config.replace(**{many: count})


def _shared(config: Config) -> Config:
    """Returns the settings that all runs share, without work outside the steps."""
    shared = of_a_short_run(config, _DEFAULT_TRAIN_STEPS)
    if config.model.script is None:
        # The model takes all batches of a run to be equally large.
        shared = shared.replace(drop_last_batch=True)
    return shared.replace(num_replicas=None, num_workers=None)


def _with_ballast(config: Config) -> Config:
    """Returns a configuration with ballast, without the export it does not allow."""
    return config.replace(ballast=True, export=None)


def uncompiled(config: Config) -> Config:
    """Returns a configuration in which XLA compiles no step that sends nothing."""
    if config.model.jit_compile != "auto":
        return config
    return config.replace(jit_compile="off")


def _small(config: Config) -> Config:
    """Returns a configuration of a network with few weights, on handwritten digits."""
    # A user's optimizer, program or data might not fit it.
    others = defaults_of(ModelConfig, DataConfig, OptimizerConfig)
    # The same one under any number of replicas.
    batch = max(_SMALL_BATCH, _smallest_batch(config, MOST_REPLICAS_HERE))
    return config.replace(
        **{**others, "model": "mlp", "hidden_units": (8,), "jit_compile": "off"},
        export=None,
        train_steps=_DEFAULT_TRAIN_STEPS,
        epochs=None,
        # Digits may have fewer examples than the batch of many micro-batches.
        drop_last_batch=False,
        global_batch_size=min(config.length.global_batch_size, batch),
    )
