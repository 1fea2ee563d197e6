"""What a launcher starts, and what each task of it gets of this machine."""

from __future__ import annotations

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
from strategies.launcher.network_isolation import AUTO


def local_cluster(num_tasks: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Addresses on free ports of this machine, by job.

    All ports are held until all are known, so that no two tasks get the same one.

    Raises:
      UsageError: there are more tasks than this process may open sockets.
    """
    try:
        return _on_free_ports(num_tasks)
    except OSError as error:
        raise UsageError(
            f"{sum(num_tasks.values())} tasks cannot have a port of this machine each "
            f"({error.strerror}): lower --num_workers or --num_ps."
        ) from error


def _on_free_ports(num_tasks: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    with contextlib.ExitStack() as held:
        addresses = {}
        for job, count in num_tasks.items():
            sockets = [held.enter_context(socket.socket()) for _ in range(count)]
            for each in sockets:
                each.bind(("127.0.0.1", 0))
            addresses[job] = tuple(f"127.0.0.1:{s.getsockname()[1]}" for s in sockets)
    return addresses


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What to start.

    Attributes:
      command: of every task; what differs is in the environment.
      addresses: host:port of each task by job.
      serving: the jobs whose tasks only lend themselves to the chief.
      computing: the jobs whose tasks compute, among whom the cores are divided.
      logs: folder for the tasks' output, used once it exists.
      gpus: what CUDA_VISIBLE_DEVICES calls this machine's GPUs, which are divided
        among those tasks as well.
      shows_all: what the other tasks print goes to the terminal too.
      confine: whether nobody else can reach the tasks, see `strategies.launcher.network_isolation`.
      max_restarts: how often lost tasks are started again without progress.
      patience_seconds: how long a task may be stopped before it counts as lost.
      to_continue: what the command has besides when all tasks are started again.
      saved_step: how far the run would be then.
      reached_step: how far it is while a task is missing.
    """

    command: Sequence[str]
    addresses: Mapping[str, tuple[str, ...]]
    serving: Sequence[str]
    computing: Sequence[str]
    logs: pathlib.Path
    gpus: Sequence[str] = ()
    shows_all: bool = False
    confine: str = AUTO
    max_restarts: int = 0
    patience_seconds: float = math.inf
    to_continue: Sequence[str] = ()
    saved_step: Callable[[], int] = lambda: 0
    reached_step: Callable[[], int] = lambda: 0

    @property
    def replaceable(self) -> Sequence[str]:
        """Jobs of which a lost task is started again while the others go on."""
        return [job for job in self.computing if job in self.serving]


def resources_of(plan: Plan, cluster: Cluster) -> dict[str, str]:
    """The environment by which a task takes its share of this machine.

    Raises:
      UsageError: there are fewer GPUs than tasks that compute.
    """
    if not plan.gpus:
        return {}
    num_computing = sum(len(plan.addresses[job]) for job in plan.computing)
    shares = divide(plan.gpus, num_computing)
    own = shares[cluster.index] if cluster.job in plan.computing else ()
    return {"CUDA_VISIBLE_DEVICES": ",".join(own)}


def cores_of(plan: Plan, cluster: Cluster) -> Sequence[int]:
    """Cores of its own for a task that computes; none if there are not enough.

    TensorFlow sizes its thread pools by the cores it may use. Pinned, the convnet
    step of two workers on two cores went from 39 to 33 ms. Four workers on two
    cores are left as they are: one thread for each operation did not help (convnet
    62 and 74 ms without, 84 and 99 with; mlp 26 to 33 and 23 to 46).
    """
    cores = sorted(os.sched_getaffinity(0))
    computing = [
        (job, index)
        for job in plan.computing
        for index in range(len(plan.addresses[job]))
    ]
    place = (cluster.job, cluster.index)
    if place not in computing:
        return ()
    per_task = len(cores) // len(computing)
    first = computing.index(place) * per_task
    return cores[first : first + per_task]


def continued(plan: Plan) -> Plan:
    """The same tasks once more, at free ports, to go on where the run was saved."""
    return dataclasses.replace(
        plan,
        command=[*plan.command, *plan.to_continue],
        to_continue=(),
        addresses=local_cluster({job: len(a) for job, a in plan.addresses.items()}),
    )
