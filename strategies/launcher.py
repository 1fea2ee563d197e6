"""Starts the processes of a cluster on this machine and ends them together.

Every task runs the same command line with its own TF_CONFIG. The chief writes to
the terminal; what the others print is kept, and shown when one of them fails.
Nothing here imports TensorFlow.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import dataclasses
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from strategies.cluster import Cluster
from strategies.confinement import AUTO, Network, network_of_its_own
from strategies.gpus import divide
from strategies.rendezvous import PeerLostError
from strategies.stop_signals import STOPS, as_passed_on

LAUNCHER_PID = "KDS_LAUNCHER_PID"

# glibc gives freed buffers of this size back to the system and faults them in anew at
# every step; kept, the 84 MB step of two workers went from 340 to 245 ms.
_ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 28),
}
_LAST_LINES = 20
_SECONDS_FOR_OTHERS_TO_END = 20.0
_SECONDS_TO_NOTICE = 1.0
_SECONDS_TO_STOP = 10.0
_POLL_SECONDS = 0.05


def local_cluster(num_tasks: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Addresses on free ports of this machine, by job.

    All ports are held until all are known, so that no two tasks get the same one.
    """
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
      confine: whether nobody else can reach the tasks, see `strategies.confinement`.
    """

    command: Sequence[str]
    addresses: Mapping[str, tuple[str, ...]]
    serving: Sequence[str]
    computing: Sequence[str]
    logs: pathlib.Path
    gpus: Sequence[str] = ()
    shows_all: bool = False
    confine: str = AUTO


def _resources_of(plan: Plan, cluster: Cluster) -> dict[str, str]:
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
        self._tasks: list[_Task] = []
        self._signal: int | None = None

    def run(self) -> int:
        """Starts every task and returns the exit code of the run.

        It is the chief's, unless another task failed first. All tasks have ended
        when this returns.

        Raises:
          UsageError: before any task is started.
        """
        confined = network_of_its_own(self._plan.confine, self._say)
        with self._signals_handled(), confined as network:
            try:
                for cluster in self._clusters():
                    resources = _resources_of(self._plan, cluster)
                    self._tasks.append(_Task(cluster, self._plan, resources, network))
                self._divide_cores()
                return self._supervise()
            finally:
                self._end_all()

    def _clusters(self) -> Iterator[Cluster]:
        for job, addresses in self._plan.addresses.items():
            for index in range(len(addresses)):
                yield Cluster(job=job, index=index, addresses=self._plan.addresses)

    def _divide_cores(self) -> None:
        """Gives every computing task cores of its own, if there are enough.

        TensorFlow sizes its thread pools by the cores it may use. Pinned, the convnet
        step of two workers on two cores went from 39 to 33 ms. Four workers on two
        cores are left as they are: one thread for each operation did not help (convnet
        62 and 74 ms without, 84 and 99 with; mlp 26 to 33 and 23 to 46).
        """
        cores = sorted(os.sched_getaffinity(0))
        computing = [t for t in self._tasks if t.cluster.job in self._plan.computing]
        per_task = len(cores) // len(computing)
        for position, task in enumerate(computing if per_task else ()):
            own = cores[position * per_task : (position + 1) * per_task]
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(task.process.pid, own)

    def _supervise(self) -> int:
        chief = next(task for task in self._tasks if task.cluster.is_chief)
        while chief.process.poll() is None and self._signal is None:
            failed = self._failed()
            if failed is not None:
                code = self._report(failed)
                self._wait(_SECONDS_TO_NOTICE, self._tasks)
                self._stop_training(signal.SIGTERM)
                return code
            time.sleep(_POLL_SECONDS)
        if self._signal is not None:
            self._stop_training(self._signal)
            if chief.process.poll() is None:
                self._say(
                    f"{chief.cluster.task} has not ended {_SECONDS_TO_STOP:g} s after "
                    f"{signal.Signals(self._signal).name}, and is killed."
                )
                return 128 + self._signal
        else:
            self._wait(_SECONDS_FOR_OTHERS_TO_END, self._tasks)
        # What the chief says of another task's loss, that task's end says better.
        has_own_reason = chief.process.poll() not in (0, PeerLostError.exit_code)
        failed = chief if has_own_reason else self._failed()
        return 0 if failed is None else self._report(failed)

    def _failed(self) -> _Task | None:
        """A task that failed; rather one that was killed than one that missed it."""
        failed = [task for task in self._tasks if task.process.poll()]

        def reason(task: _Task) -> tuple[bool, bool]:
            code = task.process.returncode
            return code > 0, code == PeerLostError.exit_code

        return min(failed, key=reason, default=None)

    def _report(self, failed: _Task) -> int:
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
        killed = f" ({signal.Signals(-code).name})" if code < 0 else ""
        if self._signal is None and not failed.cluster.is_chief:
            how = killed or f" (exit code {code})"
            self._say(f"{task} failed first{how}; its last lines:")
            for line in failed.last_lines():
                self._say(f"  {task} | {line}")
        elif self._signal is None and killed:
            self._say(f"{task} was lost{killed}.")
        return PeerLostError.exit_code if killed else code

    def _stop_training(self, number: int) -> None:
        """Tells the tasks that train; those that serve end when the chief lets them."""
        for task in self._tasks:
            if task.cluster.job not in self._plan.serving:
                task.send(as_passed_on(number))
        self._wait(_SECONDS_TO_STOP, self._tasks)

    def _wait(self, seconds: float, tasks: Sequence[_Task]) -> None:
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
        """Remembers SIGINT and SIGTERM; tasks are in sessions of their own.

        A second one ends all of them at once.
        """

        def remember(number: int, frame: object) -> None:
            for task in self._tasks if self._signal is not None else ():
                task.send(signal.SIGKILL)
            self._signal = number

        numbers = (signal.SIGINT, signal.SIGTERM)
        previous = {number: signal.signal(number, remember) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


class _Task:
    """One started process, and what it has printed."""

    def __init__(
        self,
        cluster: Cluster,
        plan: Plan,
        resources: Mapping[str, str],
        network: Network,
    ):
        self.cluster = cluster
        self._is_shown = plan.shows_all and not cluster.is_chief
        self._log = plan.logs / f"{cluster.task}.log"
        self._lines: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        environment = {
            **_ALLOCATOR,
            **os.environ,
            **resources,
            "TF_CONFIG": cluster.tf_config(),
            LAUNCHER_PID: str(os.getpid()),
        }
        self.process = subprocess.Popen(
            network.command(plan.command),
            pass_fds=tuple(network.descriptors.values()),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=None if cluster.is_chief else subprocess.PIPE,
            stderr=subprocess.PIPE if cluster.is_chief else subprocess.STDOUT,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        self._output = self.process.stderr if cluster.is_chief else self.process.stdout
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def last_lines(self) -> Sequence[str]:
        self._reader.join(timeout=1)
        return tuple(self._lines)

    def send(self, number: int) -> None:
        """Sends a signal, if the process has not ended."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def close(self) -> None:
        self.process.wait()
        self._reader.join()
        if self._output is not None:
            self._output.close()

    def _read(self) -> None:
        """Keeps the last lines, and all of them in the log once its folder exists."""
        waiting: list[str] = []
        for line in self._output or ():
            self._lines.append(line.rstrip("\n"))
            waiting.append(line)
            # A task that nobody reads stands still, so that reading goes on whatever
            # becomes of the lines.
            with contextlib.suppress(OSError):
                self._show(line)
            if self._log.parent.is_dir():
                self._append(waiting)
        if waiting and self._log.parent.is_dir():
            self._append(waiting)

    def _show(self, line: str) -> None:
        if self.cluster.is_chief:
            sys.stderr.write(line)
        elif self._is_shown:
            # From several threads: a line at a time.
            sys.stdout.write(line)
            sys.stdout.flush()

    def _append(self, lines: list[str]) -> None:
        with (
            contextlib.suppress(OSError),
            self._log.open("a", encoding="utf-8") as file,
        ):
            file.writelines(lines)
        lines.clear()
