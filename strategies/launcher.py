"""Starts the processes of a cluster on this machine and ends them together.

Every task runs the same command line with its own TF_CONFIG. The chief writes to
the terminal; what the others print is kept, and shown when one of them fails. A task
that was lost is started again: alone if the others can do without it for a while, else
together with all of them. Nothing here imports TensorFlow.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from strategies.cluster import Cluster
from strategies.confinement import Network, network_of_its_own
from strategies.launch_plan import Plan, continued, cores_of, resources_of
from strategies.launched_task import LAUNCHER_PID, LaunchedTask
from strategies.rendezvous import PeerLostError
from strategies.restarts import Restarts
from strategies.stop_signals import STOPS, as_passed_on

_SECONDS_FOR_OTHERS_TO_END = 20.0
_SECONDS_TO_NOTICE = 1.0
_SECONDS_TO_STOP = 10.0
# They look for their dismissal five times a second.
_SECONDS_TO_BE_DISMISSED = 3.0
_POLL_SECONDS = 0.05


def end_with_launcher() -> None:
    """Makes this process end when the launcher that started it does, however it ends.

    The kernel sends SIGKILL, which reaches even a stopped process. Where there is no
    such call, as on macOS, tasks of a launcher killed by SIGKILL go on.
    """
    launcher = os.environ.get(LAUNCHER_PID)
    if launcher is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have died before the call took effect.
    if os.getppid() != int(launcher):
        os.kill(os.getpid(), signal.SIGKILL)


# Linux, include/uapi/linux/prctl.h.
_PR_SET_PDEATHSIG = 1


class Launcher:
    """Runs a plan to its end."""

    def __init__(self, plan: Plan, say: Callable[[str], None]):
        """Starts nothing yet.

        Args:
          plan: what to start.
          say: told what goes wrong, line by line.
        """
        self._plan = plan
        self._say = say
        self._network = Network()
        self._tasks: list[LaunchedTask] = []
        self._signal: int | None = None
        self._restarts = Restarts(plan.max_restarts)

    @property
    def num_restarts(self) -> int:
        """How often a lost task, or all of them, were started again."""
        return self._restarts.total

    def run(self) -> int:
        """Starts every task and returns the exit code of the run.

        It is the chief's, unless another task failed first. All tasks have ended
        when this returns.

        Raises:
          UsageError: before any task is started.
        """
        confined = network_of_its_own(self._plan.confine, self._say)
        with self._signals_handled(), confined as self._network:
            exit_code = self._run_once()
            while exit_code is None:
                self._plan = continued(self._plan)
                exit_code = self._run_once()
            return exit_code

    def _run_once(self) -> int | None:
        """The exit code, or None if all tasks are to be started again."""
        self._tasks = []
        try:
            for cluster in self._clusters():
                self._tasks.append(self._start(cluster))
            return self._supervise()
        finally:
            self._end_all()

    def _clusters(self) -> Iterator[Cluster]:
        for job, addresses in self._plan.addresses.items():
            for index in range(len(addresses)):
                yield Cluster(job=job, index=index, addresses=self._plan.addresses)

    def _start(self, cluster: Cluster) -> LaunchedTask:
        task = LaunchedTask(
            cluster,
            self._plan.command,
            self._network,
            resources_of(self._plan, cluster),
            self._plan.logs / f"{cluster.task}.log",
            self._plan.shows_all,
        )
        cores = cores_of(self._plan, cluster)
        if cores:
            task.run_on(cores)
        return task

    def _supervise(self) -> int | None:
        chief = self._chief()
        while chief.process.poll() is None and self._signal is None:
            self._kill_those_that_stand_still()
            failed = self._failed()
            if failed is not None and not self._is_replaced(failed):
                return self._after_failure()
            time.sleep(_POLL_SECONDS)
        if self._signal is not None:
            return self._after_signal(chief)
        if chief.was_lost or chief.ended_by_a_signal:
            return self._after_failure()
        # One that has come again may not have found the others before they ended.
        stayed = [task for task in self._tasks if not task.is_replacement]
        self._wait(_SECONDS_FOR_OTHERS_TO_END, stayed)
        failed = chief if chief.process.poll() else self._failed()
        return 0 if failed is None or failed.was_lost else self._report(failed)

    def _after_signal(self, chief: LaunchedTask) -> int:
        number = self._signal or signal.SIGTERM
        self._stop_training(number)
        self._wait_for_those_that_serve()
        if chief.process.poll() is None:
            self._say(
                f"{chief.cluster.task} has not ended {_SECONDS_TO_STOP:g} s after "
                f"{signal.Signals(number).name}, and is killed."
            )
            return 128 + number
        # What the chief says of another task's loss, that task's end says better.
        has_own_reason = chief.process.poll() not in (0, PeerLostError.exit_code)
        failed = chief if has_own_reason else self._failed()
        return 0 if failed is None else self._report(failed)

    def _after_failure(self) -> int | None:
        """Ends the others, and decides whether to start all of them again."""
        # What brought a task down may end a moment after those that missed it.
        self._wait(_SECONDS_TO_NOTICE, self._tasks)
        for task in self._tasks:
            if task.is_stopped:
                self._kill(task, "is stopped")
        failed = self._failed()
        if failed is None:
            raise RuntimeError("there was a task that failed")
        if failed.was_lost and self._chief().process.poll() == 0:
            # Nobody needed it any more.
            return 0
        if not (failed.was_lost and self._plan.max_restarts):
            code = self._report(failed)
            self._stop_training(signal.SIGTERM)
            self._wait_for_those_that_serve()
            return code
        # Those that serve hold nothing that would still be of use.
        self._stop_training(signal.SIGTERM)
        if self._signal is not None:
            return 128 + self._signal
        step = self._plan.saved_step()
        number = self._restarts.take("all tasks", step)
        if number is None:
            return self._report(failed)
        self._say(
            f"{failed.cluster.task} was lost{failed.killed_by}: restart {number} of "
            f"{self._plan.max_restarts}, of all tasks, from step {step}."
        )
        return None

    def _is_replaced(self, failed: LaunchedTask) -> bool:
        """Starts a task that was lost again by itself, if the others go on meanwhile.

        It has the same place in the cluster, where the chief looks for it.
        """
        cluster = failed.cluster
        if cluster.job not in self._plan.replaceable or not failed.was_killed:
            return False
        step = self._plan.reached_step()
        number = self._restarts.take(cluster.task, step)
        if number is None:
            return False
        self._say(
            f"{cluster.task} was lost{failed.killed_by}: restart {number} of "
            f"{self._plan.max_restarts}, of this task, after step {step}."
        )
        failed.close()
        task = self._start(cluster)
        task.is_replacement = True
        self._tasks[self._tasks.index(failed)] = task
        return True

    def _kill_those_that_stand_still(self) -> None:
        """A stopped process keeps its connections, and others may wait for ever."""
        for task in self._tasks:
            seconds = task.seconds_stopped()
            if seconds >= self._plan.patience_seconds:
                self._kill(task, f"has been stopped for {seconds:.0f} s")

    def _kill(self, task: LaunchedTask, why: str) -> None:
        """Of a task that is stopped: it could not end by itself."""
        self._say(f"{task.cluster.task} {why}, as by SIGSTOP, and is killed.")
        task.send(signal.SIGKILL)
        task.process.wait()

    def _chief(self) -> LaunchedTask:
        return next(task for task in self._tasks if task.cluster.is_chief)

    def _failed(self) -> LaunchedTask | None:
        """A task that failed; rather one that was killed than one that missed it."""
        failed = [task for task in self._tasks if task.process.poll()]

        def rank(task: LaunchedTask) -> tuple[bool, bool, bool]:
            code = task.process.returncode
            return not task.was_killed, code > 0, code == PeerLostError.exit_code

        return min(failed, key=rank, default=None)

    def _report(self, failed: LaunchedTask) -> int:
        """Says how a task failed and returns the exit code that is the run's.

        A task that was killed, by a person or for want of memory, is one that was
        lost: it may be worth starting all of them again.
        """
        code, task = failed.process.returncode, failed.cluster.task
        if self._signal is not None and code < 0:
            return 128 + self._signal
        if -code in STOPS:
            # By somebody else, before it could end in order. So are all stopped.
            self._say(f"{task} was ended by {signal.Signals(-code).name}.")
            return 128 - code
        killed = failed.killed_by
        if self._signal is None and not failed.cluster.is_chief:
            how = killed or f" (exit code {code})"
            self._say(f"{task} failed first{how}; its last lines:")
            for line in failed.last_lines():
                self._say(f"  {task} | {line}")
        elif self._signal is None and killed:
            self._say(f"{task} was lost{killed}.")
        return PeerLostError.exit_code if killed else code

    def _stop_training(self, number: int) -> None:
        """Tells the tasks that train, and waits for them."""
        self._tell(number)
        self._wait(_SECONDS_TO_STOP, self._training())

    def _tell(self, number: int) -> None:
        """Passes a signal on to the tasks that train, to each once."""
        for task in self._training():
            task.tell(as_passed_on(number))

    def _training(self) -> list[LaunchedTask]:
        return [t for t in self._tasks if t.cluster.job not in self._plan.serving]

    def _wait_for_those_that_serve(self) -> None:
        """They end when the chief lets them, which is its last deed."""
        if self._chief().ended_in_order:
            self._wait(_SECONDS_TO_BE_DISMISSED, self._tasks)

    def _wait(self, seconds: float, tasks: Sequence[LaunchedTask]) -> None:
        deadline = time.monotonic() + seconds
        for task in tasks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                task.process.wait(max(0.0, deadline - time.monotonic()))

    def _end_all(self) -> None:
        for task in self._tasks:
            task.send(signal.SIGTERM)
        self._wait(1.0, self._tasks)
        for task in self._tasks:
            task.send(signal.SIGKILL)
            task.close()

    @contextlib.contextmanager
    def _signals_handled(self) -> Iterator[None]:
        """Passes on SIGINT and SIGTERM; tasks are in sessions of their own.

        At once: between two looks at the tasks there may be several steps. A second
        signal ends all of them.
        """

        def receive(number: int, frame: object) -> None:
            if self._signal is None:
                self._signal = number
                self._tell(number)
            else:
                for task in self._tasks:
                    task.send(signal.SIGKILL)

        previous = {number: signal.signal(number, receive) for number in STOPS}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
