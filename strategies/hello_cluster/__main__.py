"""First cluster of the TensorFlow 1 tutorials.

    python -m strategies.hello_cluster

A parameter server holds a = 3 and b = 4. One of two workers multiplies them and
prints 12. The other worker sets a = 10, multiplies, and prints 40: both workers see the
same variables. Each task is a separate process, and all tasks end with this command.

Every task runs the same program. The program starts a server (`tf.train.Server` then,
`tf.distribute.Server` now) and opens a session there. Sessions, which TensorFlow 2
keeps in `tf.compat.v1`, find a variable of another program by its name. With
`--strategy=parameter_server` one program, the chief, makes all variables, and workers
run the functions that the chief sends them.
"""

import contextlib
import os
import pathlib
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from strategies.cluster.probes import is_listening, wait_until_gone
from strategies.cluster.rendezvous import hold_port, wait_for_tasks
from strategies.cluster.security import has_remote
from strategies.cluster.spec import Cluster, check_roles, from_environment
from strategies.common.errors import PeerLostError, UsageError
from strategies.common.native_log import native_log_hidden, prepare_standard_streams
from strategies.common.signals import learn_ends_of_children, requests_to_stop
from strategies.common.text import counted, shown
from strategies.launcher.launch_config import Plan, local_cluster
from strategies.launcher.launcher import Launcher
from strategies.processes.parent import end_with_launcher

_NUM_WORKERS = 2
_NUM_TASKS = {"ps": 1, "worker": _NUM_WORKERS}
_SECONDS_TO_START = 60.0
_SECONDS_TO_END = 10.0


def main(argv: Sequence[str]) -> int:
    """Starts the cluster, or runs the task that TF_CONFIG describes.

    Returns:
      The exit code: 0 for success, 2 for a usage error, 138 if a task was dead, 1
      otherwise.
    """
    # The docstring of this module is the page of --help.
    if argv[1:] in (["--help"], ["-h"]):
        print(__doc__)
        return 0
    try:
        if argv[1:]:
            raise UsageError(
                f"{shown(argv[1])!r} is not accepted: this command takes no flags."
            )
        # The launcher sets TF_CONFIG for the tasks that it starts.
        cluster = from_environment(os.environ)
        if cluster is None:
            return _launch()
        return _run_task(cluster)
    except (UsageError, PeerLostError) as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, PeerLostError) else 2


def _launch() -> int:
    addresses = local_cluster(_NUM_TASKS)
    plan = Plan(
        command=[sys.executable, "-m", "strategies.hello_cluster"],
        addresses=addresses,
        server_jobs=(),
        logs=pathlib.Path(os.devnull),
        forward_output=True,
    )

    def warn(line: str) -> None:
        print(f"warning: {line}", file=sys.stderr)

    exit_code = Launcher(plan, warn).run()
    tasks = Cluster(addresses=addresses).tasks()
    # Ports in an isolated network are free once its last process has ended.
    left = [address for address in tasks.values() if is_listening(address)]
    if exit_code == 0 and left:
        print(f"error: {', '.join(left)} is still in use", file=sys.stderr)
        return 1
    if exit_code == 0:
        print(f"{'ended':<9} {', '.join(tasks)}; their ports are free")
    return exit_code


def _run_task(cluster: Cluster) -> int:
    """Runs one task from its start to its end.

    Raises:
      UsageError: The cluster has other tasks, or the address is in use.
      PeerLostError: A task did not start, or is dead.
    """
    check_roles(cluster, tuple(_NUM_TASKS), ())
    for job, number in _NUM_TASKS.items():
        if len(cluster.addresses[job]) != number:
            raise UsageError(
                f"TF_CONFIG key cluster.{job} lists "
                f"{counted(len(cluster.addresses[job]), 'task')}: "
                f"this program has {number}."
            )
    if has_remote(cluster.tasks().values()):
        raise UsageError(
            "TF_CONFIG names hosts other than this machine's loopback: this program is "
            "for one machine, use 127.0.0.1."
        )
    end_with_launcher()
    # Python's own handler would wait for the session, which waits for other tasks.
    if signal.SIGINT in requests_to_stop():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Reports a port that is in use before TensorFlow is imported.
    with hold_port(cluster):
        pass
    with _session(cluster) as values:
        if cluster.job == "ps":
            _hold(cluster, values)
        else:
            _work(cluster, values)
    if cluster.job == "ps":
        # Workers still close their sessions, which need this server.
        wait_until_gone(cluster.addresses["worker"], _SECONDS_TO_END)
    return 0


class _Values:
    """Variables and queues on the parameter server, which all tasks share by name."""

    def __init__(self, tensorflow: Any):
        tf = tensorflow
        with tf.device("/job:ps/task:0"):
            self.a = tf.compat.v1.get_variable("a", initializer=3)
            self.b = tf.compat.v1.get_variable("b", initializer=4)
            # In TensorFlow 1 tasks waited for each other by queues. Turn 0 belongs to
            # worker 0, and the last turn to the parameter server.
            self._turns = [
                tf.queue.FIFOQueue(1, [tf.bool], [[]], shared_name=f"turn-{turn}")
                for turn in range(_NUM_WORKERS + 1)
            ]
        self.initialize = tf.compat.v1.global_variables_initializer()
        self.product = self.a * self.b
        self.set_a = self.a.assign(10)
        self._give = [turn.enqueue(True) for turn in self._turns]
        self._wait = [turn.dequeue() for turn in self._turns]
        self.run: Any = None

    def give_turn(self, turn: int) -> None:
        self.run(self._give[turn])

    def wait_for_turn(self, turn: int) -> None:
        self.run(self._wait[turn])


@contextlib.contextmanager
def _session(cluster: Cluster) -> Iterator[_Values]:
    """Starts this task's server and yields the shared values with a session there."""
    with native_log_hidden():
        import tensorflow as tf

        from strategies.cluster.connections import connect_without_proxy
        from strategies.cluster.failure_detection import translate_peer_errors
        from strategies.cluster.resolver import cluster_spec
        from strategies.ps.server import server_threads
    config = server_threads()
    # Without this filter a session waits for all tasks, and a worker may have ended.
    config.device_filters[:] = ["/job:ps", f"/job:{cluster.job}/task:{cluster.index}"]
    config.operation_timeout_in_ms = int(1e3 * _SECONDS_TO_START)
    connect_without_proxy(cluster.members().values(), os.environ)
    server = tf.distribute.Server(
        cluster_spec(cluster),
        job_name=cluster.job,
        task_index=cluster.index,
        protocol="grpc",
        config=config,
    )
    # Only parameter servers: a worker may have ended before another one has started.
    wait_for_tasks(cluster.tasks("ps"), _SECONDS_TO_START)
    with translate_peer_errors(cluster), tf.Graph().as_default():
        values = _Values(tf)
        with tf.compat.v1.Session(server.target, config=config) as session:
            values.run = session.run
            yield values


def _hold(cluster: Cluster, values: _Values) -> None:
    """Initializes the variables and serves until the last worker is done.

    In TensorFlow 1 `server.join()` served without an end.
    """
    values.run(values.initialize)
    a, b = values.run((values.a, values.b))
    _say(cluster, f"holds a = {a} and b = {b} at {cluster.address}")
    values.give_turn(0)
    values.wait_for_turn(_NUM_WORKERS)


def _work(cluster: Cluster, values: _Values) -> None:
    # In turns, so that worker 0 multiplies before worker 1 changes `a`.
    values.wait_for_turn(cluster.index)
    if cluster.index == 0:
        _say(cluster, f"a * b = {values.run(values.product)}")
    else:
        values.run(values.set_a)
        _say(cluster, f"sets a = 10: a * b = {values.run(values.product)}")
    values.give_turn(cluster.index + 1)


def _say(cluster: Cluster, words: str) -> None:
    print(f"{cluster.task:<9} {words}", flush=True)


if __name__ == "__main__":
    prepare_standard_streams()
    learn_ends_of_children()
    sys.exit(main(sys.argv))
