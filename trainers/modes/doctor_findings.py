"""Findings of `--mode=doctor` with their remedies, and hints on slow settings."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Literal

from strategies.common.console import Console
from strategies.common.errors import ExitCode, UsageError
from strategies.common.text import counted, every
from trainers.config.config import Config
from trainers.config.groups import option

# The overhead of a step, 0.1 to 2 ms for any number of rows, is about the work of this
# many rows.
_FEW_EXAMPLES = 8
# Interval in steps below which an interruption is reported.
_OFTEN = 10

Kind = Literal["problem", "warning", "slow"]


class Findings:
    """Findings on a run: problems prevent its start, and `slow` ones cost time."""

    def __init__(self, console: Console):
        self._console = console
        # In the order in which they are printed.
        self._texts: dict[Kind, list[str]] = {"problem": [], "warning": [], "slow": []}

    def show(self, label: str, text: str) -> None:
        """Prints a property of the run."""
        self._console.item(label, text)

    def add(self, kind: Kind, *texts: str) -> None:
        """Adds findings, each once: several checks may report the same one."""
        self._texts[kind] += [t for t in texts if t not in self._texts[kind]]

    @contextlib.contextmanager
    def collect_errors(self) -> Iterator[None]:
        """Turns a `UsageError` within the context into a problem and continues."""
        try:
            yield
        except UsageError as error:
            self.add("problem", str(error))

    def conclude(self) -> ExitCode:
        """Prints the findings and whether the run could start.

        Returns:
          DONE if the run could start, USAGE if not.
        """
        for kind, texts in self._texts.items():
            for text in texts:
                self._console.say(f"{kind}: {text}")
        count = len(self._texts["problem"])
        if count:
            self._console.say(f"not ready: {counted(count, 'problem')}")
            return ExitCode.USAGE
        self._console.say("ready: this run would start")
        return ExitCode.DONE


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """Hardware that a run would use.

    Attributes:
      cores: Number of cores that this process may use.
      gpus: Number of GPUs that TensorFlow can use in this process.
      gpus_of_driver: Number of GPUs of NVIDIA's driver, usable by TensorFlow or not.
      replicas: Number of replicas in all processes together.
      computing_here: Number of tasks on this machine that compute; 1 for a single
        process.
    """

    cores: int
    gpus: int
    gpus_of_driver: int
    replicas: int
    computing_here: int


def slow_settings(config: Config, hardware: Hardware) -> Iterator[str]:
    """Yields one line for each slow setting, with the flag to change."""
    traits = config.strategy.traits
    cores, replicas = hardware.cores, hardware.replicas
    if hardware.gpus_of_driver and not hardware.gpus:
        yield gpus_left_out(hardware.gpus_of_driver)
    if hardware.computing_here > cores and not hardware.gpus:
        yield (
            f"{hardware.computing_here} tasks that compute would share "
            f"{counted(cores, 'core')} here: "
            f"use --num_workers={cores}, or more machines."
        )
    if not traits.multi_process and replicas > cores and not hardware.gpus:
        yield (
            f"{replicas} replicas would take turns on {counted(cores, 'core')}: "
            f"use {_fewer_replicas(config, cores)} or fewer."
        )
    yield from _small_shards(config, replicas)
    yield from _frequent_interrupts(config)
    threads = config.threads.intra_op_threads
    if threads > cores:
        yield (
            f"--set=threads.intra_op_threads={threads} is more than the "
            f"{counted(cores, 'core')} that this process may use: leave it out."
        )


def _fewer_replicas(config: Config, count: int) -> str:
    """Returns the flag that sets the number of replicas, with another number."""
    if config.strategy.device_choice.num_cpus:
        return f"--devices=cpu:{count}"
    return f"--num_replicas={count}"


def gpus_left_out(count: int) -> str:
    """Returns advice on GPUs of the driver that TensorFlow cannot use."""
    return (
        f"the driver has {counted(count, 'GPU')} and TensorFlow uses none: "
        "make install-gpu brings the libraries it lacks."
    )


def _small_shards(config: Config, replicas: int) -> Iterator[str]:
    """Yields a hint if the replicas' shards are small."""
    shards = config.strategy.num_shards(replicas)
    share = config.length.global_batch_size // shards
    if shards > 1 and share < _FEW_EXAMPLES:
        yield (
            f"each of {replicas} replicas would compute {counted(share, 'example')} of "
            "a step, which costs little more than computing none: raise "
            f"--global_batch_size to {_FEW_EXAMPLES * shards} or more."
        )


def _frequent_interrupts(config: Config) -> Iterator[str]:
    if config.length.steps_per_loop == 1:
        yield (
            "--steps_per_loop=1 returns to Python after every step: leave it out, and "
            "a call takes about 50 ms."
        )
    for name in ("histogram_every_steps", "eval_every_steps", "checkpoint_every_steps"):
        interval = getattr(config.report, name)
        if interval and interval < _OFTEN:
            yield (
                f"{option(name)}={interval} interrupts training "
                f"{every(interval, 'step')}: raise it to 100 or more."
            )
