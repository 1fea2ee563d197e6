"""Writes a small TFRecord file to try training on.

    python -m trainers.write_tfrecord --path=data/train.tfrecord

Each record is a tf.train.Example as in the TensorFlow 1 tutorials: `sample`, 5
int64 from 0 to 9, and `label`, an int64 that is 0 or 1. The rule to be learned is

    label = 1  if  |sample[0] + 2 sample[1] - sample[2] - 2 sample[3]| > sample[4] + 2

which holds for about half of all samples. No single weighted sum tells the two
classes apart (logistic regression gets 67 percent right), but a hidden layer of
ten units does: the command that this one prints got 95 to 100 percent of the
held-out examples right, with --seed=0 to 5.
"""

import errno
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from absl import flags

from strategies.common.errors import ExitCode, UsageError
from strategies.common.files import check_writable
from strategies.common.native_log import native_log_hidden, prepare_standard_streams
from trainers.cli.tool import run_tool, tool_flags

# All samples are in memory at once: 5 int64, 40 bytes each.
_MOST_EXAMPLES = 10_000_000


def make_flags() -> flags.FlagValues:
    """Returns the flags of this command, separate from absl's global flags."""
    values = tool_flags()
    flags.DEFINE_string(
        "path", None, "File to write, such as data/train.tfrecord.", flag_values=values
    )
    flags.DEFINE_integer(
        "num_examples",
        5000,
        "Examples to write.",
        lower_bound=1,
        upper_bound=_MOST_EXAMPLES,
        flag_values=values,
    )
    flags.DEFINE_integer(
        "seed",
        0,
        "Seed of the samples: the same seed writes the same file.",
        lower_bound=0,
        upper_bound=2**31 - 1,
        flag_values=values,
    )
    flags.DEFINE_bool(
        "overwrite", False, "Replace the file if it exists.", flag_values=values
    )
    return values


def label_of(samples: np.ndarray) -> np.ndarray:
    """Returns labels int64 [n], 0 or 1, of samples int64 [n, 5] from 0 to 9.

    The rule is in the docstring of the module.
    """
    balance = samples @ np.array([1, 2, -1, -2, 0])
    return (np.abs(balance) > samples[:, 4] + 2).astype(np.int64)


def make_examples(num_examples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns samples, int64 [num_examples, 5], and labels, int64 [num_examples]."""
    samples = np.random.default_rng(seed).integers(0, 10, (num_examples, 5))
    return samples, label_of(samples)


def write(path: Path, samples: np.ndarray, labels: np.ndarray) -> None:
    """Writes samples, int64 [n, 5], and labels, int64 [n], to a TFRecord file.

    It gets its name only when it is complete. Missing folders are created, an existing
    file is replaced.

    Raises:
      OSError: The file cannot be written.
    """
    # Without the suffix .tfrecord, so that readers of the folder ignore the file.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Created before TensorFlow is loaded, so that an unusable path fails at once.
    unfinished.touch()
    try:
        _write_records(unfinished, samples, labels)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _write_records(path: Path, samples: np.ndarray, labels: np.ndarray) -> None:
    with native_log_hidden():
        import tensorflow as tf
    try:
        with tf.io.TFRecordWriter(str(path)) as writer:
            # Row by row: a list of all numbers would take several times their memory.
            for sample, label in zip(samples, labels, strict=True):
                example = tf.train.Example()
                feature = example.features.feature
                feature["sample"].int64_list.value.extend(sample.tolist())
                feature["label"].int64_list.value.append(label.item())
                # deterministic: the same seed must write the same bytes.
                writer.write(example.SerializeToString(deterministic=True))
    except tf.errors.OpError as error:
        # TensorFlow's errors are no OSError; callers handle one kind of error.
        raise OSError(errno.EIO, error.message) from error


def run(values: flags.FlagValues) -> ExitCode:
    """Writes the file and prints how to use it.

    Raises:
      UsageError: The file cannot be written.
    """
    if not values.path:
        raise UsageError("--path is missing: name a file, such as data/train.tfrecord.")
    # The shell does not expand a tilde that follows an equals sign.
    path = Path(os.path.expanduser(values.path))
    try:
        _check_path(path, values.overwrite)
        # Replaces the target of a link, not the link.
        target = path.resolve() if path.is_symlink() else path
        write(target, *make_examples(values.num_examples, values.seed))
    except OSError as error:
        raise UsageError(
            f"--path={path} cannot be written ({error.strerror}): name another file."
        ) from error
    named = shlex.quote(str(path))
    print(
        f"wrote {values.num_examples} examples to {path}; evaluate on them by "
        f"--eval_data_path={named}, or train on them with: "
        f"python -m trainers.main --dataset=tfrecord --data_path={named} --model=mlp "
        "--hidden_units=10 --learning_rate=0.01"
    )
    return ExitCode.DONE


def _check_path(path: Path, overwrite: bool) -> None:
    if path.is_dir():
        raise UsageError(f"--path={path} is a folder: name a file in it.")
    # A rename onto a device or pipe would put a file in its place.
    if path.exists() and not path.is_file():
        raise UsageError(f"--path={path} is a pipe or device: name a file.")
    if path.exists() and not overwrite:
        raise UsageError(f"--path={path} exists: add --overwrite or name another file.")
    check_writable(path.parent, f"--path={path}")


def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    return run_tool(run, make_flags(), argv, __doc__)


if __name__ == "__main__":
    prepare_standard_streams()
    sys.exit(main(sys.argv))
