"""Launch plan: tasks, their addresses and their parts of the hardware."""

import contextlib
import dataclasses
import math
import os
import pathlib
import socket
from collections.abc import Callable, Mapping, Sequence

from strategies.cluster.spec import Cluster
from strategies.common.errors import UsageError
from strategies.devices.gpu import divide
from strategies.processes.emulated_network import host_addresses
from strategies.processes.network_isolation import AUTO
from strategies.processes.starter import ProcessStarter


def local_cluster(
    num_tasks: Mapping[str, int], *, has_hosts: bool = False
) -> dict[str, tuple[str, ...]]:
    """Returns addresses on free ports of this machine, by job.

    All ports are held until all are known, so that no two tasks get the same one.

    Args:
      num_tasks: Number of tasks by job.
      has_hosts: True if each task has a host of an emulated network.

    Raises:
      UsageError: there are more tasks than this process may open sockets.
    """
    try:
        addresses = _on_free_ports(num_tasks)
    except OSError as error:
        raise UsageError(
            f"{sum(num_tasks.values())} tasks cannot have a port of this machine each "
            f"({error.strerror}): lower --num_workers or --num_ps."
        ) from error
    if not has_hosts:
        return addresses
    hosts = host_addresses()
    return {
        job: tuple(f"{next(hosts)}:{a.rpartition(':')[2]}" for a in found)
        for job, found in addresses.items()
    }


def _on_free_ports(num_tasks: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    with contextlib.ExitStack() as held:
        addresses = {}
        for job, count in num_tasks.items():
            sockets = [held.enter_context(socket.socket()) for _ in range(count)]
            for each in sockets:
                # The kernel chooses a free port for port 0.
                each.bind(("127.0.0.1", 0))
            addresses[job] = tuple(f"127.0.0.1:{s.getsockname()[1]}" for s in sockets)
    return addresses


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Tasks that a launcher starts, and the rules for their restarts.

    Attributes:
      command: Command line of every task. Only environment variables differ.
      addresses: Address (host:port) of each task by job.
      server_jobs: Jobs that only run a TensorFlow server for the chief.
      logs: Folder for the output of the tasks, used once it exists.
      has_begun: Function that returns whether the run has begun. The output of a run
        that is refused is not kept.
      gpus: Names of this machine's GPUs in CUDA_VISIBLE_DEVICES; workers divide them.
      forward_output: True to print the output of tasks other than the chief, too.
      isolation: Network isolation of the tasks, one of
        `strategies.processes.network_isolation.CHOICES`.
      emulated_bandwidth_mbit: Megabits per second that each task sends and receives at
        most, each on a host of an emulated network; None for one network without limit.
      max_restarts: Number of restarts of dead tasks without progress in between.
      suspend_timeout_seconds: Longest suspension of a task before it counts as dead.
      stop_timeout_seconds: Time for a checkpoint of the tasks that are asked to stop.
      resume_flags: Additional arguments of the command when all tasks are restarted.
      last_arguments: Arguments that follow after all others.
      starter: Starter of the tasks' processes.
      variables: Environment variables of every task; the launcher's own count more.
      saved_step: Function that returns the step of the newest checkpoint.
      reached_step: Function that returns the step that the running tasks have reached.
    """

    command: Sequence[str]
    addresses: Mapping[str, tuple[str, ...]]
    server_jobs: Sequence[str]
    logs: pathlib.Path
    has_begun: Callable[[], bool] = lambda: True
    gpus: Sequence[str] = ()
    forward_output: bool = False
    isolation: str = AUTO
    emulated_bandwidth_mbit: float | None = None
    max_restarts: int = 0
    suspend_timeout_seconds: float = math.inf
    stop_timeout_seconds: float = 10.0
    resume_flags: Sequence[str] = ()
    last_arguments: Sequence[str] = ()
    starter: ProcessStarter = dataclasses.field(default_factory=ProcessStarter)
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    saved_step: Callable[[], int] = lambda: 0
    reached_step: Callable[[], int] = lambda: 0

    @property
    def num_workers(self) -> int:
        """Number of tasks that compute."""
        return len(self.addresses["worker"])

    @property
    def restarts_workers_alone(self) -> bool:
        """True if a worker can be restarted while the other tasks continue."""
        # Such a worker runs only functions that the chief sends it again. A parameter
        # server serves as well, but its variables would be lost.
        return "worker" in self.server_jobs


def resources_of(plan: Plan, cluster: Cluster) -> dict[str, str]:
    """Returns environment variables that limit a task to its part of the GPUs."""
    if not plan.gpus:
        return {}
    parts = divide(plan.gpus, plan.num_workers)
    # Tasks that do not compute see no GPU, so that they take no memory there.
    own = parts[cluster.index] if cluster.job == "worker" else ()
    return {"CUDA_VISIBLE_DEVICES": ",".join(own)}


def cores_of(plan: Plan, cluster: Cluster) -> Sequence[int]:
    """Returns separate cores for a worker; none if there are not enough.

    TensorFlow sizes its thread pools by the cores that it may use. With pinned cores
    the convnet step of two workers on two cores went from 39 to 33 ms.
    """
    # Four workers on two cores stay unpinned: one thread for each operation did not
    # help (convnet 62 and 74 ms without, 84 and 99 with; mlp 26 to 33 and 23 to 46).
    if cluster.job != "worker":
        return ()
    cores = sorted(os.sched_getaffinity(0))
    per_worker = len(cores) // plan.num_workers
    first = cluster.index * per_worker
    return cores[first : first + per_worker]


def continued(plan: Plan) -> Plan:
    """Returns the plan for a restart of all tasks from the newest checkpoint."""
    return dataclasses.replace(
        plan,
        command=[*plan.command, *plan.resume_flags],
        resume_flags=(),
        addresses=local_cluster(
            {job: len(a) for job, a in plan.addresses.items()},
            has_hosts=plan.emulated_bandwidth_mbit is not None,
        ),
    )
