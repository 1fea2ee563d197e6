"""Checks of settings of several groups, one function each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from strategies import registry
from strategies.common.errors import UsageError
from strategies.common.text import as_argument
from strategies.ps import NUM_RECORDED_STEPS
from trainers.config import mode_checks
from trainers.config.groups import option
from trainers.config.program import check_program, is_left_to_program

if TYPE_CHECKING:
    from trainers.config.config import Config


def _check_num_replicas(config: Config) -> None:
    replicas, name = config.strategy.num_replicas, config.strategy.strategy
    if replicas and registry.traits(name).multi_process:
        raise UsageError(
            f"--num_replicas={replicas} is not used by --strategy={name}, whose "
            "workers have a replica for each of their GPUs, or one without GPUs: give "
            "--num_workers instead."
        )


def _check_device_settings(config: Config) -> None:
    """Refuses settings of devices that would have no effect."""
    given = config.device.memory_settings()
    choice, traits = config.strategy.device_choice, config.strategy.traits
    if given and choice.num_cpus:
        raise UsageError(
            f"{given[0]} is about GPUs, and {choice} chooses none: leave one of them "
            "out."
        )
    # A task that only runs a server never reads these settings.
    if not traits.server_jobs:
        return
    strategy, jobs = config.strategy.strategy, " and ".join(traits.server_jobs)
    if given:
        raise UsageError(
            f"{given[0]} does not reach the {jobs} tasks of --strategy={strategy}: "
            "leave it out; TF_FORCE_GPU_ALLOW_GROWTH=true in their environment is "
            "TensorFlow's own setting."
        )
    if config.device.log_device_placement:
        raise UsageError(
            "--log_device_placement sees the operations of its own process, and those "
            f"of --strategy={strategy} are in {jobs} tasks: leave it out, or choose "
            "another strategy."
        )


def _check_ballast(config: Config) -> None:
    if not config.model.ballast:
        return
    ballast = "--set=model.ballast=true"
    if config.run.mode == "predict":
        raise UsageError(
            f"{ballast} is not for --mode=predict, which adds it to some of its runs "
            "by itself: leave it out."
        )
    if config.strategy.traits.is_model_parallel:
        raise UsageError(
            f"{ballast} does not fit --strategy={config.strategy.strategy}, whose "
            "stages send no gradients to each other: leave it out."
        )
    if config.report.export:
        raise UsageError(
            f"{ballast} does not fit --export={as_argument(config.report.export)}: "
            "weights that belong to no layer cannot be loaded again; leave one out."
        )


def _check_emulated_network(config: Config) -> None:
    rate = config.strategy.emulated_bandwidth_mbit
    if rate is not None and config.run.mode == "predict":
        raise UsageError(
            f"--emulated_bandwidth_mbit={rate:g} is not for --mode=predict, which "
            "measures at two bandwidths by itself: give the one to predict for, as "
            f"--set=prediction.bandwidth_gbit={rate / 1e3:g}."
        )


def _shards_of_a_batch(config: Config) -> int:
    """Returns the number of shards of a global batch, as far as it is known yet."""
    # Without `--num_replicas` the replicas are counted later, when the devices are
    # known; 1 is the lower bound.
    return config.strategy.num_shards(config.strategy.num_replicas or 1)


def _check_batch_size(config: Config) -> None:
    if is_left_to_program("global_batch_size", config):
        # Not known before its call of `fit`, where a run checks it.
        return
    size = config.length.global_batch_size
    replicas = _shards_of_a_batch(config)
    if size < replicas:
        raise UsageError(
            f"--global_batch_size={size} is smaller than --num_replicas={replicas}: "
            "every replica needs an example; raise the one or lower the other."
        )
    choice = config.strategy.device_choice
    # Under soft placement the number of replicas may be smaller than the number of
    # devices. A model-parallel strategy uses the devices for stages, not for replicas.
    is_known = not (choice.is_soft or config.strategy.traits.is_model_parallel)
    if is_known and size < choice.num_devices:
        raise UsageError(
            f"--global_batch_size={size} is smaller than the {choice.num_devices} "
            f"replicas of {choice}, each of which needs an example: raise the one or "
            "name fewer."
        )


def _check_record_steps(config: Config) -> None:
    if config.report.record_steps and config.strategy.has_stale_gradients:
        raise UsageError(
            "--set=report.record_steps=true does not fit --update=async: every step "
            "would be a call of its own, and no gradient stale; use --update=sync, or "
            "do not record steps."
        )


def _check_steps_per_loop(config: Config) -> None:
    steps, most = config.length.steps_per_loop, NUM_RECORDED_STEPS
    is_recorded = (
        config.strategy.traits.server_jobs and not config.strategy.is_synchronous
    )
    if is_recorded and (steps or 0) > most:
        raise UsageError(
            f"--steps_per_loop={steps} does not fit --update=async, whose servers keep "
            f"a record of the last {most} steps: give at most so many, or leave it out."
        )


def _check_averaged_losses(config: Config) -> None:
    if config.strategy.averaged != "losses":
        return
    if config.model.jit_compile == "on":
        raise UsageError(
            "--jit_compile=on does not fit --average=losses: XLA compiles what one "
            "replica computes, and the gradient is of all of them; leave one out."
        )
    steps = config.strategy.gradient_accumulation_steps
    if steps > 1:
        raise UsageError(
            f"--gradient_accumulation_steps={steps} does not fit --average=losses, "
            "whose one gradient needs what all examples left in memory: leave one out."
        )


def _check_microbatches(config: Config) -> None:
    if is_left_to_program("global_batch_size", config):
        return
    size = config.length.global_batch_size
    parts = {
        "num_replicas": _shards_of_a_batch(config),
        "gradient_accumulation_steps": config.strategy.gradient_accumulation_steps,
        "num_microbatches": config.strategy.num_microbatches or 1,
    }
    # The splits nest: each replica's shard is cut into accumulation steps, and each of
    # them into micro-batches, so the counts multiply.
    if size < math.prod(parts.values()):
        product = " x ".join(f"{option(n)}={k}" for n, k in parts.items() if k > 1)
        raise UsageError(
            f"--global_batch_size={size} is smaller than {product}: every micro-batch "
            "needs an example; raise the one or lower the other."
        )


def _check_replica_statistics(config: Config) -> None:
    strategy = config.strategy
    divides_batches = (
        strategy.is_synchronous
        and not strategy.traits.is_model_parallel
        and strategy.averaged == "gradients"
        and strategy.traits.max_replicas != 1
    )
    if config.report.replica_statistics and not divides_batches:
        raise UsageError(
            "--set=report.replica_statistics=true does not fit "
            f"--strategy={strategy.strategy} as it is set: there must be several "
            "replicas that share each global batch and average gradients; use "
            "mirrored, for one, or leave it out."
        )
    if config.report.replica_statistics and strategy.compression is not None:
        raise UsageError(
            "--set=report.replica_statistics=true does not fit --gradient_compression="
            f"{strategy.gradient_compression}: the sum of approximations is not the "
            "sum of the replicas' gradients, which it is compared with; leave one out."
        )


def _check_streaming(config: Config) -> None:
    name = config.strategy.strategy
    if not config.data.is_streamed or config.strategy.traits.supports_streaming:
        return
    others = [n for n in registry.names() if registry.traits(n).supports_streaming]
    received, instead = f"--strategy={name}", f"--strategy={' or '.join(others)}"
    if name in others:
        received, instead = f"--update={config.strategy.update}", "--update=sync"
    raise UsageError(
        f"--sharding={config.data.sharding} does not fit {received}, which "
        f"reads any step on request: use --sharding=exact, or {instead}."
    )


# The order decides which setting is refused first.
CHECKS: Sequence[Callable[[Config], None]] = (
    check_program,
    _check_num_replicas,
    _check_device_settings,
    _check_ballast,
    _check_emulated_network,
    _check_batch_size,
    _check_record_steps,
    _check_steps_per_loop,
    _check_averaged_losses,
    _check_microbatches,
    _check_replica_statistics,
    mode_checks.check_evaluation,
    mode_checks.check_resume,
    mode_checks.check_comparison,
    mode_checks.check_backup_workers,
    mode_checks.check_explanation,
    mode_checks.check_seeds,
    _check_streaming,
)
