"""Fixtures and settings of all tests, such as four logical CPU devices."""

import contextlib
import gc
import os
import pathlib
import re
import threading
from collections.abc import Iterator

import psutil
import pytest

from tests import processes

# Variables that change what the program or a library does, and that a shell, a
# scheduler or a container image may have set. A test sets the variables that it is
# about.
OBEYED = re.compile(
    r"(TF|KERAS|SLURM|SLURMD|MLFLOW|WANDB)_.*"
    # rich reads its width and colors from these.
    r"|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|TTY_COMPATIBLE|TTY_INTERACTIVE"
    r"|PYTHON(WARNINGS|OPTIMIZE|DEVMODE|INSPECT|IOENCODING|VERBOSE|UNBUFFERED)"
    # With this variable every command that a test starts would compile this project's
    # files again: 0.25 s of the 3.8 s that a short run takes.
    r"|PYTHONDONTWRITEBYTECODE"
)
for _name in filter(OBEYED.fullmatch, list(os.environ)):
    del os.environ[_name]
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

# Otherwise pytest explains a failed assertion in test files alone.
pytest.register_assert_rewrite(
    *(f"tests.{folder.name}" for folder in pathlib.Path(__file__).parent.glob("*/"))
)

LOGICAL_CPUS = 4

# The files of these folders start many processes and take minutes. If one of them began
# last, it would run alone while the other test processes have nothing left to do.
BEGUN_FIRST = ("cluster", "verify", "compare", "fault_injection", "keras_program")

# Parameters of one test that may have values which `make test` leaves out.
MOST_FURTHER = 2


def pytest_configure(config: pytest.Config) -> None:
    """Splits the CPU before any test touches TensorFlow."""
    # The process of pytest-xdist that only distributes tests waits for its own import
    # of TensorFlow before it starts the others.
    if config.getoption("tx", []) and not hasattr(config, "workerinput"):
        return

    import tensorflow as tf

    from trainers.cli.tensorflow_setup import adapt_tensorflow

    # Tests build models and trace graphs all the time. The garbage collector took a
    # tenth of that time to look through the objects of TensorFlow and Keras.
    gc.freeze()
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * LOGICAL_CPUS
    )
    adapt_tensorflow()


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Moves the longest files to the front, and keeps the order otherwise.

    Leaves out a test with three parameters or more whose values `make test` does not
    have. Any two such values still meet, while the others are as in `make test`.
    """
    left_out = [item for item in items if _num_further(item) > MOST_FURTHER]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if _num_further(item) <= MOST_FURTHER]
    items.sort(key=lambda item: item.path.parent.name not in BEGUN_FIRST)


def _num_further(item: pytest.Item) -> int:
    """Returns the number of parameters of a test whose values are marked exhaustive."""
    parameters = getattr(item, "callspec", None)
    marks = [] if parameters is None else parameters.marks
    return sum(mark.name == "exhaustive" for mark in marks)


@pytest.fixture(autouse=True, scope="session")
def default_signals_of_children() -> None:
    """Lets the tests of signals pass in a background job and under nohup, too.

    This is a fixture and no part of `pytest_configure`, because the process of
    pytest-xdist that only distributes tests would start the others with the default,
    and Ctrl-C for another program would end them.
    """
    processes.give_children_default_signals()


@pytest.fixture(autouse=True, scope="session")
def templates_of_processes() -> Iterator[None]:
    """Ends the templates from which tests have forked the program."""
    with processes.templates().starter:
        yield


@pytest.fixture(autouse=True)
def single_precision_again() -> Iterator[None]:
    """Restores the precision that a test has changed for all of Keras."""
    yield
    import keras

    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


@pytest.fixture(autouse=True)
def soft_placement_again() -> Iterator[None]:
    """Restores soft placement, which --nosoft_placement ends for all of TensorFlow."""
    yield
    import tensorflow as tf

    tf.config.set_soft_device_placement(True)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fails a test that leaks an environment variable, a thread or a process."""
    environment = dict(os.environ)
    threads = {thread.ident for thread in threading.enumerate()}
    children = _children()
    yield
    changed = {
        name
        for name in {*environment, *os.environ}
        if environment.get(name) != os.environ.get(name)
    } - {"PYTEST_CURRENT_TEST"}
    assert not changed, f"environment variables left changed: {changed}"
    left = [
        thread.name
        for thread in threading.enumerate()
        if thread.ident not in threads and thread.is_alive() and not thread.daemon
    ]
    assert not left, f"threads left running: {left}"
    children |= {*processes.templates().starter.template_pids()}
    orphans = [_end(pid) for pid in _children() - children]
    assert not orphans, f"processes left running, and killed now: {orphans}"


def _children() -> set[int]:
    """Returns the ids of the children of this process."""
    try:
        # psutil reads all processes of the machine, 1.3 ms for each call where most
        # tests take less than 10 ms.
        files = [
            f"/proc/self/task/{id_}/children" for id_ in os.listdir("/proc/self/task")
        ]
        texts = [pathlib.Path(path).read_text(encoding="ascii") for path in files]
        return {int(pid) for text in texts for pid in text.split()}
    # A thread has ended meanwhile, or the system is no Linux.
    except FileNotFoundError:
        return {child.pid for child in psutil.Process().children()}


def _end(pid: int) -> str:
    """Kills a process and all its descendants, so that no other test meets them.

    Returns:
      Description of the process.
    """
    described = f"process {pid}"
    with contextlib.suppress(psutil.NoSuchProcess):
        child = psutil.Process(pid)
        described = str(child)
        for process in [*child.children(recursive=True), child]:
            process.kill()
        child.wait()
    return described
