"""Powers of matrices are right, and where they were asked to be."""

import pathlib
import re
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from strategies.common.private_apis.graphs import graphs_collected
from tests import processes
from trainers import matpow
from trainers.matpow import (
    Measured,
    Task,
    difference,
    judge,
    main,
    make_matrices,
    measure_numpy,
    measure_tensorflow,
    report,
)

NO_GPU = pytest.mark.skipif(
    bool(tf.config.list_physical_devices("GPU")), reason="is about a missing GPU"
)


def small_task(count: int = 2, dtype: str = "float64", power: int = 5) -> Task:
    return Task(matrices=make_matrices(count, 40, dtype, seed=3), power=power)


def expected(task: Task) -> np.ndarray:
    """Returns the sum of the powers, by repeated squaring: other products."""
    powers = [
        np.linalg.matrix_power(matrix.astype(np.float64), task.power)
        for matrix in task.matrices
    ]
    return np.sum(powers, axis=0)


def test_matrices_are_those_of_the_seed_with_rows_that_add_up_to_one() -> None:
    first, second = make_matrices(2, 30, "float32", seed=1)
    assert first.dtype == np.float32
    # Sums of 30 numbers in float32.
    np.testing.assert_allclose(first.sum(axis=1), 1, rtol=30 * np.finfo("f4").eps)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, make_matrices(2, 30, "float32", seed=1)[0])
    assert not np.array_equal(first, make_matrices(2, 30, "float32", seed=2)[0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("power", [2, 3, 10])
def test_sums_of_powers_are_those_of_numpys_own(power: int, dtype: str) -> None:
    task = small_task(3, dtype, power)
    found = [
        measure_numpy(task, repeats=1),
        measure_tensorflow(task, ["/device:CPU:0"], repeats=1),
        measure_tensorflow(task, [f"/device:CPU:{n}" for n in range(3)], repeats=1),
    ]
    for measured in found:
        assert measured.result.dtype == dtype
        assert measured.seconds > 0
        # Within the bound by which this program judges itself, and not close to zero.
        off = difference(measured.result, expected(task))
        assert off <= task.accepted_difference < 1e-3


def test_each_matrix_is_on_its_device_and_the_sum_on_the_cpu() -> None:
    task = small_task(2, power=4)
    devices = ["/device:CPU:1", "/device:CPU:2"]
    with graphs_collected() as graphs:
        measure_tensorflow(task, devices, repeats=1)
    placed = {(node.op, node.device[-5:]) for graph in graphs for node in graph.node}
    products = {device for kind, device in placed if kind == "MatMul"}
    assert products == {"CPU:1", "CPU:2"}
    assert {device for kind, device in placed if kind.startswith("Add")} == {"CPU:0"}


def test_operations_are_counted() -> None:
    # Two matrices, four products each, of 2 x 40^3 operations.
    assert small_task(power=5).floating_point_operations == 2 * 4 * 2 * 40**3


@pytest.mark.parametrize("factor", [1.0, 1.01, np.nan])
def test_what_is_wrong_by_a_percent_is_different(
    factor: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also in one entry only."""
    task = small_task(dtype="float32")
    reference = Measured("NumPy", expected(task), 1.0)
    result = expected(task)
    result[3, 4] *= factor
    exit_code = judge(task, reference, [Measured("one device", result, 0.5)])
    assert exit_code == (0 if factor == 1 else 4)
    words = "agree     to 0.0e+00" if factor == 1 else "different by "
    assert capsys.readouterr().out.startswith(words)


def test_speed_up_is_over_one_device() -> None:
    task = small_task()
    result = expected(task)
    lines = report(
        task,
        Measured("NumPy", result, 0.4),
        [Measured("one device", result, 0.2), Measured("2 devices", result, 0.1)],
    )
    figures = {line[:12].strip(): line[12:].split() for line in lines[1:]}
    gflop = task.floating_point_operations / 1e9
    assert figures["NumPy"] == ["400.0", f"{gflop / 0.4:.1f}", "0.50", "-"]
    assert figures["one device"][2:] == ["1.00", "0.0e+00"]
    assert figures["2 devices"][2:] == ["2.00", "0.0e+00"]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return processes.run_words([sys.executable, "-m", "trainers.matpow", *arguments])


@NO_GPU
@pytest.mark.slow
def test_the_command_compares_one_device_with_several_and_numpy() -> None:
    done = command("--size=60", "--power=3", "--repeats=2", "--devices=cpu:3")
    assert (done.returncode, done.stderr) == (0, "")
    first, _, *rows, last = done.stdout.splitlines()
    assert first == (
        "matpow    3 matrices of 60 x 60 to the power of 3, float32: 0.0 GFLOP"
    )
    expected_rows = ("NumPy", "one device: CPU:0", "3 devices: CPU:0, CPU:1, CPU:2")
    for line, where in zip(rows, expected_rows, strict=True):
        assert line.startswith(where)
    assert re.fullmatch(r"agree +to \S+; rounding accounts for 1.4e-05", last)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("--size=0", "--size=0"),
        ("--size=x", "--size=x"),
        ("--power=1", "--power=1"),
        ("--dtype=float16", "--dtype=float16"),
        ("--sise=3", "'sise'"),
        ("more", "'more'"),
        ("--devices=cpu:0", "--devices=cpu:0"),
        ("--devices=", "--devices="),
        ("--devices=cpu:999", "--devices=cpu:999"),
        pytest.param("--devices=gpu:9", "--devices=gpu:9", marks=NO_GPU),
    ],
)
def test_wrong_use_is_one_line(
    arguments: str,
    named: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["matpow", *arguments.split()]) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ")
    assert named in line
    assert list(tmp_path.iterdir()) == []


def test_matrices_that_do_not_fit_into_memory_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(matpow, "_take_devices", lambda choice: ["/device:CPU:0"])
    full = MemoryError("Unable to allocate 4.00 GiB")
    monkeypatch.setattr(matpow, "make_matrices", mock.Mock(side_effect=full))
    assert main(["matpow", "--size=32768"]) == 2
    assert capsys.readouterr().err == (
        "error: --size=32768 does not fit into memory (Unable to allocate 4.00 GiB): "
        "lower it.\n"
    )


def test_help_lists_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matpow", "--help"]) == 0
    printed = capsys.readouterr().out
    for name in ("size", "power", "devices", "[no]soft_placement", "dtype", "repeats"):
        assert f"  --{name}: " in printed
