"""Powers of matrices on one device and on several: what does placement bring?

    python -m trainers.matpow --size=1000 --power=10 --devices=cpu:2

This is the first program of many texts on several GPUs: A^n + B^n, first with all work
on one device, then with one matrix on each and the sum on the CPU. With more devices
there are more matrices, one for each. All are also multiplied by NumPy, and the three
sums have to agree.

A power is n - 1 products one after the other, of 2 size^3 operations each. Entries are
random from 0 to 1, divided by the sum of their row: so are the entries of every power,
and nothing grows or vanishes.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
from absl import flags

from strategies.common.errors import ExitCode, UsageError, is_out_of_memory
from strategies.common.native_log import native_log_hidden, prepare_standard_streams
from strategies.common.text import one_line, table_lines
from strategies.devices.parsing import DeviceChoice, parse_devices
from trainers.cli.tool import run_tool, tool_flags


def make_flags() -> flags.FlagValues:
    """Returns the flags of this command, separate from absl's global flags."""
    values = tool_flags()
    for name, default, least, most, text in (
        ("size", 1000, 1, 2**15, "Rows and columns of a matrix."),
        ("power", 10, 2, 1000, "Exponent of the power of a matrix."),
        ("repeats", 5, 1, 1000, "Timings of each computation; the median counts."),
        ("seed", 0, 0, 2**31 - 1, "Seed of the random matrices."),
    ):
        flags.DEFINE_integer(
            name, default, text, lower_bound=least, upper_bound=most, flag_values=values
        )
    flags.DEFINE_string(
        "devices",
        None,
        "GPUs by number, such as gpu:0,gpu:2, or cpu:2 for the CPU split in two. "
        "Default: every GPU, or cpu:2.",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "soft_placement",
        False,
        "Go on with the CPU, or with the other GPUs, if one of --devices is missing.",
        flag_values=values,
    )
    flags.DEFINE_enum(
        "dtype",
        "float32",
        ["float32", "float64"],
        "Type of the entries.",
        flag_values=values,
    )
    return values


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """Computation: the sum of powers of matrices.

    Attributes:
      matrices: Matrices, [size, size] each.
      power: Exponent, 2 or more.
    """

    matrices: Sequence[np.ndarray]
    power: int

    @property
    def floating_point_operations(self) -> int:
        """Multiplications and additions of all products; the sum adds only a few."""
        size = len(self.matrices[0])
        return 2 * size**3 * (self.power - 1) * len(self.matrices)

    @property
    def accepted_difference(self) -> float:
        """Maximum difference of two results, relative to each entry.

        No entry is negative, so no digits cancel: to first order, a computed sum of n
        products has a relative error of at most n u, for any order of addition, where u
        is half the distance from 1 to the next number (Higham, Accuracy and Stability
        of Numerical Algorithms, 2002, section 3.5). Each product adds this error, and
        both compared results have it.
        """
        unit = float(np.finfo(self.matrices[0].dtype).eps) / 2
        # Factor 2: both results have the error.
        return 2 * (self.power - 1) * len(self.matrices[0]) * unit


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """Result of a computation and its duration.

    Attributes:
      where: Device names for the table.
      result: Sum of the powers, [size, size].
      seconds: Median over repeats.
    """

    where: str
    result: np.ndarray
    seconds: float


def make_matrices(count: int, size: int, dtype: str, seed: int) -> list[np.ndarray]:
    """Returns random [size, size] matrices with rows that sum to 1."""
    generator = np.random.default_rng(seed)
    matrices = [generator.random((size, size), dtype) for _ in range(count)]
    return [matrix / matrix.sum(axis=1, keepdims=True) for matrix in matrices]


def measure_numpy(task: Task, repeats: int) -> Measured:
    """Computes and times the sum of powers with NumPy."""

    def compute() -> np.ndarray:
        total = np.zeros_like(task.matrices[0])
        for matrix in task.matrices:
            product = matrix
            for _ in range(task.power - 1):
                product = product @ matrix
            total += product
        return total

    return _measure("NumPy", compute, repeats)


def measure_tensorflow(task: Task, devices: Sequence[str], repeats: int) -> Measured:
    """Computes and times the powers on devices in turn, and their sum on the CPU."""
    import tensorflow as tf

    from strategies.devices.assignment import CPU, name_of

    places = [devices[i % len(devices)] for i in range(len(task.matrices))]
    placed = []
    for matrix, place in zip(task.matrices, places, strict=True):
        with tf.device(place):
            # Copied to its device before the timing starts.
            placed.append(tf.identity(matrix))

    @tf.function(autograph=False)
    def compute(*matrices: tf.Tensor) -> tf.Tensor:
        powers = []
        for matrix, place in zip(matrices, places, strict=True):
            with tf.device(place):
                product = matrix
                for _ in range(task.power - 1):
                    # TensorFlow runs the chains of different devices in parallel.
                    product = tf.matmul(product, matrix)
                powers.append(product)
        with tf.device(CPU):
            return tf.add_n(powers)

    names = ", ".join(map(name_of, devices))
    count = "one device" if len(devices) == 1 else f"{len(devices)} devices"
    # .numpy() waits until the result is computed.
    return _measure(f"{count}: {names}", lambda: compute(*placed).numpy(), repeats)


def _measure(where: str, compute: Callable[[], np.ndarray], repeats: int) -> Measured:
    """Times a computation after a first call, which traces and allocates memory."""
    result = compute()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = compute()
        seconds.append(time.perf_counter() - start)
    return Measured(where, result, float(np.median(seconds)))


def difference(result: np.ndarray, reference: np.ndarray) -> float:
    """Returns the largest difference of entries, relative to the reference's.

    It is infinite if an entry is not a number.
    """
    relative = np.abs(result.astype(np.float64) / reference.astype(np.float64) - 1)
    return float(np.nan_to_num(relative, nan=np.inf).max())


def report(task: Task, reference: Measured, found: Sequence[Measured]) -> list[str]:
    """Returns the lines of a table; the speed-up is relative to `found[0]`."""
    rows = [("", "ms", "GFLOP/s", "speed-up", "difference")]
    for measured in (reference, *found):
        speed_up = found[0].seconds / measured.seconds
        off = difference(measured.result, reference.result)
        rows.append(
            (
                measured.where,
                f"{1e3 * measured.seconds:,.1f}",
                f"{task.floating_point_operations / measured.seconds / 1e9:,.1f}",
                f"{speed_up:.2f}",
                "-" if measured is reference else f"{off:.1e}",
            )
        )
    return table_lines(rows)


def run(values: flags.FlagValues) -> ExitCode:
    """Computes and times the powers, and prints the table.

    Returns:
      DONE, or DIFFERENT if results do not agree.

    Raises:
      UsageError: A device is missing, or matrices do not fit into memory.
    """
    listed = values.devices.split(",") if values.devices is not None else ()
    devices = _take_devices(parse_devices(listed, values.soft_placement))
    try:
        return _compare(values, devices)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise UsageError(
            f"--size={values.size} does not fit into memory ({one_line(error)[:200]}): "
            "lower it."
        ) from error


def _compare(values: flags.FlagValues, devices: Sequence[str]) -> ExitCode:
    # A^n + B^n needs at least two matrices.
    count = max(2, len(devices))
    matrices = make_matrices(count, values.size, values.dtype, values.seed)
    task = Task(matrices=matrices, power=values.power)
    print(
        f"matpow    {count} matrices of {values.size:,} x {values.size:,} to the power "
        f"of {values.power}, {values.dtype}: "
        f"{task.floating_point_operations / 1e9:,.1f} GFLOP",
        flush=True,
    )
    reference = measure_numpy(task, values.repeats)
    # One device first, as the base of the speed-up.
    placements = [devices[:1], devices] if len(devices) > 1 else [devices]
    found = [measure_tensorflow(task, each, values.repeats) for each in placements]
    print("\n".join(report(task, reference, found)))
    return judge(task, reference, found)


def judge(task: Task, reference: Measured, found: Sequence[Measured]) -> ExitCode:
    """Prints whether all results agree with the reference; returns the exit code."""
    most = max(difference(each.result, reference.result) for each in found)
    accepted = task.accepted_difference
    if most > accepted:
        print(f"different by {most:.1e}, and rounding accounts for {accepted:.1e}")
        return ExitCode.DIFFERENT
    print(f"agree     to {most:.1e}; rounding accounts for {accepted:.1e}")
    return ExitCode.DONE


def _take_devices(choice: DeviceChoice) -> list[str]:
    """Loads TensorFlow and returns the names of the chosen devices."""
    # 2 hides information and warnings; TensorFlow reads the variable when it is
    # imported.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with native_log_hidden():
        import tensorflow as tf

        from strategies.devices.assignment import substitution, take_devices

        # The detection of GPUs logs from C++, so it runs while the log is hidden.
        tf.config.list_physical_devices()
    devices = take_devices(choice, wanted=None, wanted_without_gpu=2)
    words = substitution(choice)
    if words:
        print(f"warning: {words}", file=sys.stderr)
    # A computation must neither move to another device nor use fewer digits than its
    # dtype.
    tf.config.set_soft_device_placement(False)
    tf.config.experimental.enable_tensor_float_32_execution(False)
    return devices


def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    return run_tool(run, make_flags(), argv, __doc__)


if __name__ == "__main__":
    prepare_standard_streams()
    sys.exit(main(sys.argv))
