"""Checks of settings of a strategy that depend on each other, one function each.

This module does not import TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from strategies import registry
from strategies.common.errors import UsageError
from strategies.common.text import as_argument, counted, shown
from strategies.processes.network_isolation import OFF

if TYPE_CHECKING:
    from strategies.config import StrategyConfig

# Most characters of a layer's name, or of a number of stages: int() refuses more than
# 4,300 digits.
_LONGEST_NAME = 1_000


def _check_num_replicas(config: StrategyConfig) -> None:
    most = registry.traits(config.strategy).max_replicas
    if most is not None and (config.num_replicas or 1) > most:
        raise UsageError(
            f"--num_replicas={config.num_replicas} does not fit "
            f"--strategy={config.strategy}, which has at most {most}: lower it or "
            "choose another strategy."
        )


def _check_devices(config: StrategyConfig) -> None:
    choice, traits = config.device_choice, registry.traits(config.strategy)
    if not choice.num_devices:
        return
    if traits.multi_process:
        raise UsageError(
            f"{choice} is not used by --strategy={config.strategy}, whose tasks have a "
            "CPU or an equal part of the GPUs each: set CUDA_VISIBLE_DEVICES, or "
            "choose a strategy of one process."
        )
    # --pipeline_stages decides how many devices are needed, when the strategy is
    # created.
    if traits.is_model_parallel:
        return
    count, most = choice.num_devices, traits.max_replicas
    if most is not None and count > most:
        raise UsageError(
            f"{choice} names {count} devices, and --strategy={config.strategy} has at "
            f"most {most}: name fewer, or choose another strategy."
        )
    if config.num_replicas not in (None, count):
        raise UsageError(
            f"{choice} names {counted(count, 'device')} and --num_replicas="
            f"{config.num_replicas} asks for others: leave one of them out."
        )


def _check_pipeline_stages(config: StrategyConfig) -> None:
    names = config.pipeline_stages or ()
    is_unusable = "" in names or any(len(n) > _LONGEST_NAME for n in names)
    if is_unusable or (config.num_stages is not None and config.num_stages < 2):
        raise UsageError(
            f"--pipeline_stages={shown(as_argument(config.pipeline_stages))} is out of "
            "range: give 2 or more, or names of layers; --strategy=one_device does not "
            "split the model."
        )


def _check_update(config: StrategyConfig) -> None:
    accepted = registry.traits(config.strategy).updates
    if config.update is not None and config.update not in accepted:
        raise UsageError(
            f"--update={config.update} does not fit --strategy={config.strategy}, "
            f"which takes {' or '.join(accepted) or 'no --update'}: leave it out, or "
            "choose another strategy."
        )


def _check_backup_workers(config: StrategyConfig) -> None:
    backups = config.backup_workers
    # Only a strategy with a coordinator can leave gradients out.
    can_drop = config.update == "sync" and config.traits.server_jobs
    if backups and not can_drop:
        raise UsageError(
            f"--backup_workers={backups} needs a strategy that can leave gradients "
            "out, with --update=sync: add --update=sync to "
            "--strategy=parameter_server, or leave it out."
        )
    # Otherwise the number is known once it is known who starts the tasks.
    if config.num_workers is not None:
        check_workers_left(config, config.num_workers)


def check_workers_left(config: StrategyConfig, num_workers: int) -> None:
    """Refuses backup workers if an update would wait for no worker."""
    if config.backup_workers >= num_workers:
        raise UsageError(
            f"--backup_workers={config.backup_workers} of {num_workers} workers leaves "
            "none to wait for: lower it, or have more workers (--num_workers, or those "
            "of TF_CONFIG or Slurm)."
        )


def _check_average(config: StrategyConfig) -> None:
    accepted = config.traits.averages
    if config.average is not None and config.average not in accepted:
        raise UsageError(
            f"--average={config.average} does not fit {_flags_of(config)}, which takes "
            f"{' or '.join(accepted) or 'none'}: leave it out, or choose "
            f"{_strategies_that_average(config.average)}."
        )
    if config.averaged == "parameters" and config.all_reduce_dtype != "as_is":
        raise UsageError(
            f"--all_reduce_dtype={config.all_reduce_dtype} does not fit "
            f"{_flags_of(config, 'average')}, which sends no gradients: leave it out."
        )
    if config.averaged == "parameters" and config.shard_optimizer_state:
        raise UsageError(
            f"--shard_optimizer_state does not fit {_flags_of(config, 'average')}, "
            "under which each replica updates all weights: leave it out."
        )


def _check_outer_fragments(config: StrategyConfig) -> None:
    count, every = config.outer_fragments, config.steps_between_averages
    if config.outer_optimizer != "none" and count > every:
        raise UsageError(
            f"--outer_fragments={count} is more than --sync_every_steps={every}: no "
            "two fragments are averaged at one step; lower the one or raise the other."
        )


def _check_gradient_compression(config: StrategyConfig) -> None:
    if config.compression is None:
        return
    setting = f"--gradient_compression={config.gradient_compression}"
    # Any other strategy refuses the setting itself, with either update mode.
    takes_it = "gradient_compression" in config.traits.own_settings
    if takes_it and not config.is_synchronous:
        raise UsageError(
            f"{setting} does not fit {_flags_of(config)}, whose workers do not sum "
            "gradients: add --update=sync, or leave it out."
        )
    if config.backup_workers:
        raise UsageError(
            f"{setting} does not fit --backup_workers={config.backup_workers}, whose "
            "dropped gradients would take along what is to be sent later: leave one of "
            "them out."
        )
    if config.averaged == "parameters":
        raise UsageError(
            f"{setting} does not fit {_flags_of(config, 'average')}, which sends no "
            "gradients: leave it out."
        )
    if config.all_reduce_dtype != "as_is":
        raise UsageError(
            f"{setting} does not fit --all_reduce_dtype={config.all_reduce_dtype}, "
            "which is another form of the same gradients: leave one of them out."
        )
    if config.shard_optimizer_state:
        raise UsageError(
            f"{setting} does not fit --shard_optimizer_state, whose workers need parts "
            "of the sum alone: leave one of them out."
        )


def _check_gradient_reduction(config: StrategyConfig) -> None:
    # A sum needs the gradients of all replicas.
    has_all = config.averaged in ("gradients", "losses") and not config.backup_workers
    if config.gradient_reduction != "mean" and not has_all:
        raise UsageError(
            f"--set=strategy.gradient_reduction={config.gradient_reduction} does not "
            f"fit {_flags_of(config, 'average')}: it is for updates of the gradients "
            "of several replicas, and all of them; leave it out, or choose "
            f"{_strategies_that_average('gradients')}."
        )


def _check_emulated_network(config: StrategyConfig) -> None:
    rate = config.emulated_bandwidth_mbit
    if rate is not None and config.isolate_network == OFF:
        raise UsageError(
            "--set=strategy.isolate_network=off does not fit "
            f"--emulated_bandwidth_mbit={rate:g}, whose network is isolated: leave one "
            "of them out."
        )


def _flags_of(config: StrategyConfig, *further: str) -> str:
    """Returns the strategy, its way of updating and further settings, as flags."""
    flags = {"strategy": config.strategy}
    if not config.is_synchronous:
        flags["update"] = "async"
    for name in (*further, "backup_workers"):
        if getattr(config, name):
            flags[name] = getattr(config, name)
    return " ".join(f"--{name}={value}" for name, value in flags.items())


def _strategies_that_average(values: str) -> str:
    """Returns the strategies that average a kind of values, as flags.

    Flags are given only where they differ from their default.
    """
    found = []
    for name in registry.names():
        traits = registry.traits(name)
        if values not in traits.averages or not traits.synchronous:
            continue
        flags = f"--strategy={name}"
        if traits.updates:
            flags += " --update=sync"
        if values != traits.averages[0]:
            flags += f" --average={values}"
        found.append(flags)
    return " or ".join(found)


# The order decides which setting is refused first.
CHECKS: Sequence[Callable[[StrategyConfig], None]] = (
    _check_num_replicas,
    _check_devices,
    _check_pipeline_stages,
    _check_update,
    _check_backup_workers,
    _check_average,
    _check_outer_fragments,
    _check_gradient_compression,
    _check_gradient_reduction,
    _check_emulated_network,
)
