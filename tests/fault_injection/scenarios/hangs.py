"""Scenarios of runs without progress, which name the task that is behind."""

import contextlib
import functools
import pathlib
import random
import re
import signal
import subprocess
from collections.abc import Callable, Iterator

from strategies.processes.forked_process import Process
from tests import processes
from tests.cluster.separate_hosts import separate_hosts
from tests.cluster.tasks import Tasks, running
from tests.fault_injection.scenario import Scenario

# The timeout is longer than tasks take to trace on a busy machine.
_SECONDS = 12
# The timeout is below the 10 s after which TensorFlow's heartbeats report a silent
# task.
_SECONDS_OF_SILENCE = 7
_SILENCE = f"--set=guard.stall_timeout_seconds={_SECONDS_OF_SILENCE}"
_FLAGS = (
    f"--set=guard.stall_timeout_seconds={_SECONDS}",
    # Peers may be silent for longer than the stall takes.
    "--set=strategy.peer_timeout_seconds=300",
    "--set=report.histogram_every_steps=none",
    "--max_restarts=0",
)
_MIRRORED = ("--strategy=multi_worker_mirrored", "--num_workers=2")
_SERVED = ("--strategy=parameter_server", "--num_workers=2", "--num_ps=1")
_TRAINING = (
    "--model=mlp",
    "--hidden_units=8",
    "--train_steps=1000000",
    "--summary_every_steps=20",
    "--checkpoint_every_steps=100",
)

# A user's program. One of its tasks stops in its input, a callback or a layer.
_PROGRAM = """
import json, os, threading, time
import keras, numpy as np, tensorflow as tf

task = json.loads(os.environ["TF_CONFIG"])["task"]
is_stuck = f"{task['type']}-{task['index']}" == STUCK_TASK
features = np.random.default_rng(0).random((64, 8), np.float32)
labels = (features.sum(1) > 4).astype(np.int64)
lock = threading.Lock()

def batches():
    for step in range(1_000_000):
        if is_stuck and PLACE == "input" and step == STEP:
            time.sleep(3600)
        yield features, labels

class Deadlocked(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if is_stuck and PLACE == "callback" and batch == STEP:
            with lock:
                lock.acquire()

class PythonLayer(keras.layers.Layer):
    num_calls = 0

    def call(self, inputs):
        outputs = tf.numpy_function(self.same, [inputs], tf.float32)
        return tf.stop_gradient(tf.ensure_shape(outputs, inputs.shape))

    def same(self, values):
        PythonLayer.num_calls += 1
        if is_stuck and PLACE == "layer" and self.num_calls > STEP:
            for _ in range(2):
                lock.acquire()
        return values

class Slow(keras.layers.Layer):
    def call(self, inputs):
        # Long for a loop without Python, from a step on: the model is also called with
        # the first examples before it is trained.
        large = tf.random.stateless_uniform([400, 400], [1, 2])
        count = tf.where(is_stuck & (tf.reduce_max(inputs) < 0), 10**9, 1)
        loop = tf.while_loop(
            lambda i, m: i < count, lambda i, m: (i + 1, m @ m * 1e-3), [0, large])
        return inputs + 0 * tf.stop_gradient(loop[1][0, 0])

layers = {"layer": [PythonLayer()], "computation": [Slow()]}.get(PLACE, [])
model = keras.Sequential(
    [keras.Input([8]), *layers, keras.layers.Dense(2, activation="softmax")])
model.compile(optimizer="sgd", loss="sparse_categorical_crossentropy")
stream = tf.data.Dataset.from_tensors((features, labels)).repeat(STEP).concatenate(
    tf.data.Dataset.from_tensors((-1 - features, labels)).repeat())
model.fit(
    batches() if PLACE == "input" else stream,
    steps_per_epoch=100_000,
    callbacks=[Deadlocked()] if PLACE == "callback" else [],
    verbose=0,
)
"""
_SIGNS = {
    # The chief of parameter servers reads its first input while it traces.
    "input": r"(training|tracing), in its input: Python, batches \(program\.py:\d+\)",
    "callback": r"running callbacks, in on_train_batch_end \(program\.py:\d+\)",
    "layer": "training, in Python that TensorFlow calls .*: same",
    "computation": "training, computing in TensorFlow",
}


def _in_program(
    places: tuple[tuple[str, str], ...],
    flags: tuple[str, ...],
    chosen: random.Random,
    folder: pathlib.Path,
) -> float:
    """Lets a task of a user's program stop in one of several places."""
    task, place = chosen.choice(places)
    program = folder / "program.py"
    # With variables of the environment the run could not be forked from a template.
    place_and_step = f"PLACE, STEP = {place!r}, {chosen.randrange(5, 40)}"
    program.write_text(
        f"STUCK_TASK = {task!r}\n{place_and_step}\n{_PROGRAM}", encoding="utf-8"
    )
    run = f"--run_dir={folder / 'run'}"
    process = processes.start(
        *(*flags, *_FLAGS, f"--script={program}", run),
        folder=processes.ROOT,
    )
    (ended,) = processes.ends_of([process])
    return _assert_named(ended, task, rf"for \d+ s has been {_SIGNS[place]}")


def _assert_named(
    ended: subprocess.CompletedProcess[str], task: str, work: str
) -> float:
    """Asserts exit code 138, and one line that names the task and its work.

    Returns:
      The seconds without progress in this line.
    """
    assert ended.returncode == 138, f"exit code {ended.returncode}: {ended.stderr}"
    lines = [line for line in ended.stderr.splitlines() if "has not been" in line]
    # A launcher shows another task's last lines if its chief has printed nothing.
    assert len(lines) == 1, f"{len(lines)} lines: {ended.stderr[-2000:]}"
    return _seconds_of(lines[0], task, work)


def _seconds_of(line: str, task: str, work: str) -> float:
    pattern = rf"step \d+ has not been reached by {task} at \S+, which {work}[;:(, ]"
    assert re.search(pattern, line), f"not {task}, {work}: {line}"
    (seconds,) = re.findall(r"no progress in (\d+) s", line)
    return float(seconds)


def _assert_silent(line: str, task: str, words: str = "does not answer") -> None:
    """Asserts that a line names a silent task.

    On a busy machine TensorFlow's heartbeats may miss the task first.
    """
    assert re.search(rf"{task} at \S+ {words}|{task} at \S+, which {words}", line), line


@contextlib.contextmanager
def _trained(
    folder: pathlib.Path, *flags: str, step: int = 1
) -> Iterator[tuple[Process, pathlib.Path]]:
    """Yields a run of one command, once it has trained some steps."""
    run = folder / "run"
    given = (*_TRAINING, *_FLAGS, *flags, f"--run_dir={run}")
    with processes.started(*given, folder=folder) as process:
        processes.wait_until(
            lambda: processes.last_step_of(run) >= step, "its metrics", process
        )
        yield process, run


def _suspended(
    flags: tuple[str, ...],
    tasks: tuple[tuple[str, int], ...],
    chosen: random.Random,
    folder: pathlib.Path,
) -> None:
    """Suspends a task; the launcher or another task names it."""
    job, index = chosen.choice(tasks)
    with _trained(folder, *flags, step=chosen.randrange(1, 200)) as (process, run):
        stopped = processes.task_of(process.pid, job, index)
        stopped.suspend()
        ended = processes.end_of(process)
    assert ended.returncode == 138, f"exit code {ended.returncode}: {ended.stderr}"
    lines = ended.stderr.splitlines()
    if (job, index) == ("worker", 0) and flags[0] == _MIRRORED[0]:
        assert any("worker-0 is stopped, as by SIGSTOP" in line for line in lines)
        lines = (run / "logs" / "worker-1.log").read_text("utf-8").splitlines()
    _assert_silent(next(li for li in lines if "error: " in li), f"{job}-{index}")


def _disk_blocks(chosen: random.Random, folder: pathlib.Path) -> float:
    """Blocks the disk of the chief, in a checkpoint or at a line of metrics."""
    with _trained(folder, *_MIRRORED) as (process, run):
        chief = processes.task_of(process.pid, "worker", 0)
        if chosen.random() < 0.5:
            strace = _blocking(chief.pid, "fsync")
            work = r"for \d+ s has been saving, waiting for a disk: .*"
        else:
            files = (run / "metrics.jsonl", run / "logs" / "worker-0.log")
            strace = _blocking(chief.pid, "write", *files)
            work = r"for \d+ s has been .*, waiting for a disk: .*metrics\.jsonl"
        assert process.stderr is not None
        with strace:
            # The disk blocks until the line is printed. Before that no process can end.
            line = process.stderr.readline()
        ended = processes.end_of(process)
    ended.stderr = line
    return _assert_named(ended, "worker-0", work)


@contextlib.contextmanager
def _blocking(process: int, call: str, *paths: pathlib.Path) -> Iterator[None]:
    """Delays a system call of a process by an hour, for all or some files."""
    command = ["strace", "-f", "-qq", "-o/dev/null", f"-p{process}"]
    command += [f"-etrace={call}", f"-einject={call}:delay_enter=3600s"]
    command += [f"-P{path}" for path in paths]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as strace:
        try:
            yield
        finally:
            strace.send_signal(signal.SIGKILL)


def _network_cut(chosen: random.Random, folder: pathlib.Path) -> None:
    """Cuts off one of three hosts; it and the others name the host."""
    with separate_hosts(3) as hosts:
        addresses = tuple(f"{hosts.address(host)}:2222" for host in range(3))
        networks = {f"worker-{host}": hosts.networks[host] for host in range(3)}
        flags = (
            "--strategy=multi_worker_mirrored",
            "--allow_remote_hosts",
            *(*_TRAINING, *_FLAGS[:-1], _SILENCE),
        )
        cut = chosen.randrange(3)
        with running(Tasks({"worker": addresses}, folder, flags, networks)) as tasks:
            step = chosen.randrange(1, 200)
            tasks.wait_until(
                lambda: processes.last_step_of(tasks.run_dir) >= step, "its metrics"
            )
            hosts.cut_off(cut)
            codes = tasks.exit_codes()
            assert set(codes.values()) == {138}, f"exit codes {codes}"
            said = {
                name: task.error_lines()[-1] for name, task in tasks.started.items()
            }
    victim = f"worker-{cut}"
    _assert_silent(said.pop(victim), victim, "reaches no other task")
    for line in said.values():
        _assert_silent(line, victim)


def _scenario(
    name: str, promise: str, attempt: Callable[..., float | None], *arguments: object
) -> Scenario:
    return Scenario(
        name=f"hang-{name}",
        promise=f"{promise} is named, with its work, by a run that ends with 138",
        tries=10,
        attempt=functools.partial(attempt, *arguments),
        # A task checks its progress twenty times within the timeout.
        most_seconds=_SECONDS + 1.0,
    )


_WORKERS = (("worker", 0), ("worker", 1))
SCENARIOS = (
    _scenario(
        "input",
        "a task whose input sleeps",
        _in_program,
        (("worker-0", "input"), ("worker-1", "input")),
        _MIRRORED,
    ),
    _scenario(
        "python",
        "a task whose Python has a deadlock, in a callback or a layer,",
        _in_program,
        (("worker-0", "callback"), ("worker-1", "layer")),
        _MIRRORED,
    ),
    _scenario(
        "computation",
        "a task that computes without an end",
        _in_program,
        (("worker-0", "computation"), ("worker-1", "computation")),
        _MIRRORED,
    ),
    _scenario(
        "sigstop", "a suspended task", _suspended, (*_MIRRORED, _SILENCE), _WORKERS
    ),
    _scenario("disk", "a chief whose disk blocks", _disk_blocks),
    _scenario("network", "a host that is cut off from two others", _network_cut),
    _scenario(
        "served",
        "a suspended worker or parameter server",
        _suspended,
        _SERVED,
        (*_WORKERS, ("ps", 0)),
    ),
    _scenario(
        "served-python",
        "a chief of parameter servers in its input or a callback",
        _in_program,
        (("chief-0", "input"), ("chief-0", "callback")),
        _SERVED,
    ),
)
