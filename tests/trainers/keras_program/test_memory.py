"""Data that are streamed are never all in memory, in any process."""

import pathlib
import time

import psutil
import pytest

from tests import processes

# test_stream.py counts the batches that are read ahead.
pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

# Batches of 1 MiB.
_PROGRAM = """
import sys

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(0)


def batches():
    rows = np.random.default_rng(0).normal(size=(64, 4096)).astype("float32")
    for _ in range(int(sys.argv[1])):
        rows = np.roll(rows, 1, axis=1)
        yield rows, rows[:, :1]


signature = tf.TensorSpec((None, 4096)), tf.TensorSpec((None, 1))
data = tf.data.Dataset.from_generator(batches, output_signature=signature)
model = keras.Sequential([keras.Input((4096,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(1e-4), "mse")
model.fit(data, verbose=0)
"""
_SERVERS = ("--strategy=parameter_server", "--num_workers=2", "--num_ps=1")


def _peak_mib(folder: pathlib.Path, num_batches: int, *flags: str) -> float:
    """Returns the largest memory that a process of a run had."""
    program = folder / "train.py"
    program.write_text(_PROGRAM)
    run_dir = folder / f"run{num_batches}"
    words = (f"--script={program}", f"--run_dir={run_dir}", *flags)
    most = 0
    with processes.started(*words, "--", str(num_batches), folder=folder) as process:
        seen = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                for one in (seen, *seen.children(recursive=True)):
                    most = max(most, one.memory_info().rss)
            except psutil.NoSuchProcess:
                continue
            time.sleep(0.05)
        ended = processes.end_of(process)
    assert ended.returncode == 0, ended.stderr
    assert processes.result_of(run_dir)["steps"] == num_batches
    return most / 2**20


@pytest.mark.parametrize(
    ("flags", "limit_mib"),
    [
        (("--strategy=mirrored",), 200),
        ((*_SERVERS, "--update=async"), 200),
        ((*_SERVERS, "--update=sync"), 200),
        (("--strategy=multi_worker_mirrored", "--num_workers=2"), 200),
    ],
)
def test_ten_times_the_data_need_no_more_memory(
    tmp_path: pathlib.Path, flags: tuple[str, ...], limit_mib: int
) -> None:
    """Data of ten times the limit, of which less than a tenth may be in memory."""
    few = _peak_mib(tmp_path, limit_mib, *flags)
    many = _peak_mib(tmp_path, 10 * limit_mib, *flags)
    # Of 2,000 MiB, 9 to 48 more were seen in the largest process.
    assert many - few < limit_mib, (few, many)
