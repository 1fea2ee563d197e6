"""Starts the processes of a cluster on this machine and ends them together.

Every task runs the same command line with its own TF_CONFIG. The chief writes to
the terminal; the output of the others is kept, and shown when one of them fails. A lost
task is restarted: alone if the others can do without it for a while, else together with
all of them. Nothing here imports TensorFlow.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator

from strategies.common.errors import PeerLostError
from strategies.common.signals import STOPS, requests_to_stop
from strategies.launcher.launch_config import Plan, continued
from strategies.launcher.network_isolation import Network, network_of_its_own
from strategies.launcher.process import LaunchedTask
from strategies.launcher.process_group import SECONDS_TO_STOP, TaskGroup

_POLL_SECONDS = 0.05


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
        self._tasks = TaskGroup(plan, self._network, say)
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
        self._tasks = TaskGroup(self._plan, self._network, self._say)
        try:
            self._tasks.start()
            return self._supervise()
        finally:
            self._tasks.end()

    def _supervise(self) -> int | None:
        chief = self._tasks.chief()
        while chief.process.poll() is None and self._signal is None:
            self._tasks.kill_those_that_stand_still()
            failed = self._tasks.failed()
            if failed is not None and not self._is_replaced(failed):
                return self._after_failure()
            time.sleep(_POLL_SECONDS)
        if self._signal is not None:
            return self._after_signal(chief)
        if chief.was_lost or chief.ended_by_a_signal:
            return self._after_failure()
        self._tasks.wait_for_those_that_stayed()
        failed = chief if chief.process.poll() else self._tasks.failed()
        return 0 if failed is None or failed.was_lost else self._report(failed)

    def _after_signal(self, chief: LaunchedTask) -> int:
        number = self._signal or signal.SIGTERM
        self._tasks.stop_training(number)
        self._tasks.wait_for_those_that_serve()
        if chief.process.poll() is None:
            self._say(
                f"{chief.cluster.task} has not ended {SECONDS_TO_STOP:g} s after "
                f"{signal.Signals(number).name}, and is killed."
            )
            return 128 + number
        # What the chief says of another task's loss, that task's end says better.
        has_own_reason = chief.process.poll() not in (0, PeerLostError.exit_code)
        failed = chief if has_own_reason else self._tasks.failed()
        return 0 if failed is None else self._report(failed)

    def _after_failure(self) -> int | None:
        """Ends the others, and decides whether to start all of them again."""
        self._tasks.wait_for_the_cause()
        failed = self._tasks.failed()
        if failed is None:
            raise RuntimeError("there was a task that failed")
        if failed.was_lost and self._tasks.chief().process.poll() == 0:
            # Nobody needed it any more.
            return 0
        if not (failed.was_lost and self._plan.max_restarts):
            code = self._report(failed)
            self._tasks.stop_training(signal.SIGTERM)
            self._tasks.wait_for_those_that_serve()
            return code
        # Those that serve hold nothing that would still be of use.
        self._tasks.stop_training(signal.SIGTERM)
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
        self._tasks.start_again(failed)
        return True

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

    @contextlib.contextmanager
    def _signals_handled(self) -> Iterator[None]:
        """Passes on SIGINT and SIGTERM; tasks are in sessions of their own.

        At once: between two looks at the tasks there may be several steps. A second
        signal ends all of them.
        """

        def receive(number: int, frame: object) -> None:
            if self._signal is None:
                self._signal = number
                self._tasks.tell(number)
            else:
                self._tasks.kill()

        previous = {n: signal.signal(n, receive) for n in requests_to_stop()}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


class Restarts:
    """A budget that progress renews.

    A run that gets on between two faults goes on for as long as faults come; one that
    always fails at the same place ends after a few tries.
    """

    def __init__(self, most: int):
        """Begins with a full budget.

        Args:
          most: restarts without progress in between; 0 for none at all.
        """
        self.most = most
        self.total = 0
        self._used: dict[str, tuple[int, int]] = {}

    def take(self, what: str, step: int) -> int | None:
        """Takes one restart out of the budget.

        Args:
          what: is started again; each has a budget of its own.
          step: how far the run has come.

        Returns:
          The number of this restart since the last progress, counted from one; None if
          there is none left.
        """
        used, last_step = self._used.get(what, (0, step))
        if step > last_step:
            used = 0
        if used >= self.most:
            return None
        self._used[what] = used + 1, step
        self.total += 1
        return used + 1
