"""Launcher of all processes of a cluster on this machine.

Every task runs the same command line with its own TF_CONFIG. The chief writes to the
terminal. The launcher keeps the output of the other tasks and shows it when one of them
fails. The launcher restarts a dead task: alone if the other tasks can continue without
it for a while, else together with all of them. This module does not import TensorFlow.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping

from strategies.cluster.spec import Cluster
from strategies.common.errors import PeerLostError
from strategies.common.signals import STOPS, requests_to_stop
from strategies.launcher.launch_config import Plan, continued
from strategies.launcher.process import LaunchedTask
from strategies.launcher.process_group import TaskGroup
from strategies.processes.emulated_network import networks_of_tasks
from strategies.processes.network_isolation import Network
from strategies.processes.process_title import LAUNCHER, set_name

_POLL_SECONDS = 0.05


class Launcher:
    """Supervisor that runs a plan to its end."""

    def __init__(self, plan: Plan, say: Callable[[str], None]):
        """Starts no process yet."""
        self._plan = plan
        self._say = say
        self._networks: Mapping[str, Network] = {}
        self._tasks = TaskGroup(plan, self._networks, say)
        self._signal: int | None = None
        self._restarts = RestartBudget(plan.max_restarts)

    @property
    def num_restarts(self) -> int:
        """Number of restarts, each of a dead task or of all tasks."""
        return self._restarts.total

    def run(self) -> int:
        """Starts every task and returns the exit code of the run.

        The exit code is the chief's, unless another task failed first. All tasks have
        ended when this method returns.

        Raises:
          UsageError: The plan cannot be started. No task has been started then.
        """
        set_name(LAUNCHER)
        networks = networks_of_tasks(
            Cluster(addresses=self._plan.addresses).tasks(),
            self._plan.emulated_bandwidth_mbit,
            self._plan.isolation,
            self._say,
        )
        with self._signals_handled(), networks as self._networks:
            exit_code = self._run_once()
            while exit_code is None:
                self._plan = continued(self._plan)
                exit_code = self._run_once()
            return exit_code

    def _run_once(self) -> int | None:
        """Returns the exit code, or None if all tasks have to be restarted."""
        self._tasks = TaskGroup(self._plan, self._networks, self._say)
        try:
            self._tasks.start()
            return self._supervise()
        finally:
            self._tasks.end()

    def _supervise(self) -> int | None:
        chief = self._tasks.chief()
        while chief.process.poll() is None and self._signal is None:
            self._tasks.kill_suspended()
            failed = self._tasks.failed()
            if failed is not None and not self._try_to_restart_alone(failed):
                return self._after_failure()
            time.sleep(_POLL_SECONDS)
        if self._signal is not None:
            return self._after_signal(chief)
        if chief.is_peer_failure or chief.was_signaled:
            return self._after_failure()
        self._tasks.wait_for_original_tasks()
        failed = chief if chief.process.poll() else self._tasks.failed()
        return 0 if failed is None or failed.is_peer_failure else self._report(failed)

    def _after_signal(self, chief: LaunchedTask) -> int:
        number = self._signal or signal.SIGTERM
        self._tasks.stop_training(number)
        self._tasks.wait_for_servers()
        if chief.process.poll() is None:
            seconds = self._plan.stop_timeout_seconds
            self._say(
                f"{chief.cluster.task} has not ended {seconds:g} s after "
                f"{signal.Signals(number).name}, and is killed: a higher "
                "--set=strategy.stop_timeout_seconds leaves more time for a checkpoint."
            )
            return 128 + number
        # Prefer the failed task's own exit status to the chief's report of it.
        has_own_reason = chief.process.poll() not in (0, PeerLostError.exit_code)
        failed = chief if has_own_reason else self._tasks.failed()
        return 0 if failed is None else self._report(failed)

    def _after_failure(self) -> int | None:
        """Ends the other tasks. Returns the exit code, or None to restart all tasks."""
        self._tasks.wait_for_root_cause()
        failed = self._tasks.failed()
        if failed is None:
            raise RuntimeError("there was a task that failed")
        if failed.is_peer_failure and self._tasks.chief().process.poll() == 0:
            # The chief had finished and needed the task no longer.
            return 0
        if not (failed.is_peer_failure and self._plan.max_restarts):
            code = self._report(failed)
            # With a chance for a checkpoint. The servers that it reads from end last.
            self._tasks.stop_training(signal.SIGTERM)
            self._tasks.wait_for_servers()
            return code
        # Servers need no time to end: the restart reads a checkpoint, not their values.
        self._tasks.stop_training(signal.SIGTERM)
        # A signal to the launcher may have arrived during the wait.
        if self._signal is not None:
            return 128 + self._signal
        step = self._plan.saved_step()
        number = self._restarts.take("all tasks", step)
        if number is None:
            return self._report(failed)
        how = f"was lost{failed.signal_name}"
        if failed.exited:
            # It was not lost itself; its last line says which task was, or is behind.
            how = f"ended with {PeerLostError.exit_code}"
            if not failed.cluster.is_chief:
                self._say(
                    f"{failed.cluster.task} | {''.join(failed.last_lines()[-1:])}"
                )
        self._say(
            f"{failed.cluster.task} {how}: restart {number} of "
            f"{self._plan.max_restarts}, of all tasks, from step {step}."
        )
        return None

    def _try_to_restart_alone(self, failed: LaunchedTask) -> bool:
        """Restarts a killed task while the others continue; returns whether it did."""
        cluster = failed.cluster
        is_alone = cluster.job == "worker" and self._plan.restarts_workers_alone
        if not (is_alone and failed.was_killed):
            return False
        step = self._plan.reached_step()
        number = self._restarts.take(cluster.task, step)
        if number is None:
            return False
        self._say(
            f"{cluster.task} was lost{failed.signal_name}: restart {number} of "
            f"{self._plan.max_restarts}, of this task, after step {step}."
        )
        self._tasks.start_again(failed)
        return True

    def _report(self, failed: LaunchedTask) -> int:
        """Reports the failure of a task and returns the exit code of the run.

        A person or the kernel, for lack of memory, may have killed the task. The exit
        code then says that a restart of all tasks may help.
        """
        # A negative return code -N is the death by signal N.
        code, task = failed.process.returncode, failed.cluster.task
        if self._signal is not None and code < 0:
            return 128 + self._signal
        if -code in STOPS:
            # Somebody else sent the signal before the task could end with a checkpoint.
            # The run ends as if the launcher had received the signal.
            self._say(f"{task} was ended by {signal.Signals(-code).name}.")
            return 128 - code
        killed = failed.signal_name
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
        """Forwards SIGINT and SIGTERM to the tasks; a second signal kills all tasks."""

        # A terminal does not reach the tasks, because each has its own session.
        def receive(number: int, frame: object) -> None:
            if self._signal is None:
                self._signal = number
                # At once: several steps fit between two looks at the tasks.
                self._tasks.forward(number)
            else:
                self._tasks.kill()

        previous = {n: signal.signal(n, receive) for n in requests_to_stop()}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


class RestartBudget:
    """Budget of restarts that progress renews.

    A run that makes progress between two faults may restart any number of times. A run
    that always fails at the same step ends after a few attempts.
    """

    def __init__(self, most: int):
        """Starts with a full budget."""
        self._most = most
        self.total = 0
        self._used: dict[str, tuple[int, int]] = {}

    def take(self, name: str, step: int) -> int | None:
        """Takes one restart out of the budget.

        Args:
          name: Name of the restarted task or tasks; each name has a separate budget.
          step: Step that the run has reached.

        Returns:
          The number of this restart since the last progress, counted from one; None if
          the budget is used up.
        """
        used, last_step = self._used.get(name, (0, step))
        if step > last_step:
            used = 0
        if used >= self._most:
            return None
        self._used[name] = used + 1, step
        self.total += 1
        return used + 1
