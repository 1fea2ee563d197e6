"""Processes of all tasks of a cluster on this machine.

The launcher decides how to react when a task fails. This module does not import
TensorFlow.
"""

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from strategies.cluster.spec import Cluster
from strategies.common.errors import PeerLostError
from strategies.common.signals import as_passed_on
from strategies.launcher.launch_config import Plan
from strategies.launcher.process import LaunchedTask
from strategies.processes.network_isolation import Network

_SECONDS_FOR_OTHERS_TO_END = 20.0
_SECONDS_TO_NOTICE = 1.0
# Servers look for their shutdown file five times a second.
_SECONDS_TO_SHUT_DOWN = 3.0
_SECONDS_TO_END = 1.0


class TaskGroup:
    """Processes of one plan."""

    def __init__(
        self,
        plan: Plan,
        networks: Mapping[str, Network],
        say: Callable[[str], None],
    ):
        """Starts no process yet."""
        self._plan = plan
        self._networks = networks
        self._say = say
        self._tasks: list[LaunchedTask] = []

    def start(self) -> None:
        """Starts every task."""
        for job, addresses in self._plan.addresses.items():
            for index in range(len(addresses)):
                cluster = Cluster(job=job, index=index, addresses=self._plan.addresses)
                self._tasks.append(self._start(cluster))

    def start_again(self, ended: LaunchedTask) -> None:
        """Starts an ended task again, at the same address, where others look for it."""
        ended.close()
        task = self._start(ended.cluster)
        task.is_replacement = True
        self._tasks[self._tasks.index(ended)] = task

    def _start(self, cluster: Cluster) -> LaunchedTask:
        return LaunchedTask(cluster, self._plan, self._networks[cluster.task])

    def chief(self) -> LaunchedTask:
        """Returns the task of the chief, whose end is the end of the run."""
        return next(task for task in self._tasks if task.cluster.is_chief)

    def failed(self) -> LaunchedTask | None:
        """Returns the failed task that is the likeliest root cause, or None."""
        # A poll gives None for a running task and 0 for success.
        failed = [task for task in self._tasks if task.process.poll()]

        # In this order: killed, ended by a stop signal, failed by itself, and failed
        # because another task was dead.
        def order(task: LaunchedTask) -> tuple[bool, bool, bool]:
            code = task.process.returncode
            return not task.was_killed, code > 0, code == PeerLostError.exit_code

        return min(failed, key=order, default=None)

    def forward(self, number: int) -> None:
        """Forwards a signal to the tasks that train, to each task once."""
        for task in self._training():
            task.forward(as_passed_on(number))

    def stop_training(self, number: int) -> None:
        """Forwards a signal to the tasks that train, and waits for their ends."""
        self.forward(number)
        wait_for_ends(self._plan.stop_timeout_seconds, self._training())

    def wait_for_original_tasks(self) -> None:
        """Waits for the ends of all tasks that were never restarted."""
        # A restarted task may not have found the others before they ended, and would
        # wait for them.
        stayed = [task for task in self._tasks if not task.is_replacement]
        wait_for_ends(_SECONDS_FOR_OTHERS_TO_END, stayed)

    def wait_for_servers(self) -> None:
        """Waits for the ends of all tasks, if the chief has shut down the servers."""
        # Shutting down the servers is the chief's last action before an orderly end.
        if self.chief().exited:
            wait_for_ends(_SECONDS_TO_SHUT_DOWN, self._tasks)

    def wait_for_root_cause(self) -> None:
        """Waits briefly, because the root cause may exit after the tasks it broke."""
        wait_for_ends(_SECONDS_TO_NOTICE, self._tasks)
        # A suspended task never exits, and may be the root cause itself.
        for task in self._tasks:
            if task.is_stopped:
                self._kill(task, "is stopped")

    def kill_suspended(self) -> None:
        """Kills every task that has been suspended for too long.

        A suspended process keeps its connections, and others may wait for it for ever.
        """
        for task in self._tasks:
            seconds = task.seconds_stopped()
            if seconds >= self._plan.suspend_timeout_seconds:
                self._kill(task, f"has been stopped for {seconds:.0f} s")

    def kill(self) -> None:
        """Kills all tasks without waiting for their ends."""
        for task in self._tasks:
            task.send(signal.SIGKILL)

    def end(self) -> None:
        """Ends all tasks, by force if necessary, and waits for their ends."""
        for task in self._tasks:
            task.send(signal.SIGTERM)
        wait_for_ends(_SECONDS_TO_END, self._tasks)
        for task in self._tasks:
            task.send(signal.SIGKILL)
            task.close()

    def _kill(self, task: LaunchedTask, why: str) -> None:
        """Reports and kills a suspended task, which cannot end by itself."""
        self._say(f"{task.cluster.task} {why}, as by SIGSTOP, and is killed.")
        task.send(signal.SIGKILL)
        # `failed` finds the task by its return code, known after this wait.
        task.process.wait()

    def _training(self) -> list[LaunchedTask]:
        return [t for t in self._tasks if t.cluster.job not in self._plan.server_jobs]


def wait_for_ends(seconds: float, tasks: Sequence[LaunchedTask]) -> None:
    """Waits until all tasks have ended, for the given seconds at most."""
    deadline = time.monotonic() + seconds
    for task in tasks:
        with contextlib.suppress(subprocess.TimeoutExpired):
            task.process.wait(max(0.0, deadline - time.monotonic()))
