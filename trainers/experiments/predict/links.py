"""Short runs over emulated networks, which have a link for each task."""

import dataclasses
from collections.abc import Iterator, Sequence

from strategies.common.errors import UsageError
from strategies.processes.emulated_network import host_addresses, networks_of_tasks
from trainers.experiments.predict.experiments import Experiment

BANDWIDTHS_MBIT = (100.0, 1000.0)
# Ballast has as many bytes as the model's own gradients, and these at least.
_LEAST_BALLAST_BYTES = 1 << 20
# Over a slow link all steps are the same: its speed does not depend on other work.
_FEWEST_STEPS = 8
# In calls of several steps of each worker, after one that the median leaves out.
FEWEST_STEPS_OF_EACH = 6


def over_links(
    local: Experiment, num_steps: int, step_seconds: float, bytes_on_a_link: float
) -> Iterator[Experiment]:
    """Yields the same run over emulated networks of several bandwidths.

    They have as many steps as take the time of the local run, or somewhat longer.
    `bytes_on_a_link` is the number of bytes of each step over the busiest link.
    """
    for rate in BANDWIDTHS_MBIT:
        # Bytes by megabits per second.
        slower = step_seconds + 8e-6 * bytes_on_a_link / rate
        steps = max(int(num_steps * step_seconds / slower), fewest_steps(local))
        config = local.config.replace(
            train_steps=min(steps, num_steps), epochs=None, emulated_bandwidth_mbit=rate
        )
        yield dataclasses.replace(local, config=config)


def fewest_steps(run: Experiment) -> int:
    """Returns the number of steps whose median is the time of a step."""
    if run.config.strategy.is_synchronous:
        return _FEWEST_STEPS
    return FEWEST_STEPS_OF_EACH * run.num_replicas


def is_over_links_too(experiment: Experiment, others: Sequence[Experiment]) -> bool:
    """Returns whether a run of several processes may be repeated over links.

    Those with the fewest and the most replicas may, with the whole batch.
    """
    of_arm = [e for e in others if e.arm == experiment.arm and e.size == "own"]
    counts = [e.num_replicas for e in of_arm]
    batches = [e.config.length.global_batch_size for e in of_arm]
    return (
        experiment.size in ("own", "ballast")
        and experiment.config.strategy.traits.multi_process
        and experiment.config.length.global_batch_size == max(batches)
        and experiment.num_replicas in (min(counts), max(counts))
    )


def has_size_of_links(experiment: Experiment, gradient_bytes: float) -> bool:
    """Returns whether gradients are small with ballast or large without.

    Fewer bytes take no time that a link would show, and ballast for large gradients
    would take the time of all other runs together. `gradient_bytes` includes ballast.
    """
    if experiment.size == "own":
        # Compressed gradients have no run with ballast that could take the place.
        is_compressed = experiment.config.strategy.compression is not None
        return is_compressed or gradient_bytes >= _LEAST_BALLAST_BYTES
    return gradient_bytes < 2 * _LEAST_BALLAST_BYTES


def obstacle_to_links() -> str | None:
    """Returns why this machine emulates no networks; None if it does."""
    task = {"worker-0": f"{next(host_addresses())}:1"}
    try:
        # Created and removed, only to check that it can be created.
        with networks_of_tasks(task, BANDWIDTHS_MBIT[0], "auto", lambda _: None):
            return None
    except UsageError as error:
        return str(error)
