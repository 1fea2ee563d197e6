"""The end of a program's process: what a program has left running is completed."""

import pathlib

import pytest

from tests import processes
from tests.markers import further

_PROGRAM = """
import concurrent.futures
import multiprocessing
import sys
import threading
import time

import keras
import numpy as np

# Its process lives until the end, with copies of all pipes and sockets of this one.
pool = multiprocessing.Pool(1)
x = np.random.normal(size=(32, 4))
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
with open("output.txt", "w") as sys.stdout:
    model.fit(x, x.sum(axis=1), batch_size=16)


def save(name):
    time.sleep(0.5)
    model.save(name)


threading.Thread(target=save, args=["of_thread.keras"]).start()
concurrent.futures.ThreadPoolExecutor(1).submit(save, "of_pool.keras")
"""


@pytest.mark.parametrize(
    "strategy",
    [
        ("--strategy=one_device",),
        further(("--strategy=multi_worker_mirrored", "--num_workers=2")),
        further(("--strategy=parameter_server", "--num_workers=1", "--num_ps=1")),
    ],
)
def test_threads_and_pools_of_a_program_complete(
    tmp_path: pathlib.Path, strategy: tuple[str, ...]
) -> None:
    program = tmp_path / "train.py"
    program.write_text(_PROGRAM)
    done = processes.run(
        *(f"--script={program}", f"--run_dir={tmp_path / 'run'}", *strategy),
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "of_thread.keras").is_file()
    assert (tmp_path / "of_pool.keras").is_file()
    assert "completed | step 2" in (tmp_path / "output.txt").read_text()
