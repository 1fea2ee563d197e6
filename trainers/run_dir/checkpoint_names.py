"""Folder names of checkpoints.

This module does not import TensorFlow.
"""

import fnmatch
import pathlib
import re

from strategies.common.errors import UsageError
from strategies.common.files import check_writable

_NAME = re.compile(r"step-([0-9]{8,18})")


def name_of(step: int) -> str:
    """Returns the name of a checkpoint's folder."""
    return f"step-{step:08d}"


def check_writable_run(path: pathlib.Path) -> None:
    """Checks that a run can be written at a path or below it, and found there again.

    Raises:
      UsageError: Nothing can be made there, or TensorFlow would not find checkpoints.
      OSError: The system cannot look there.
    """
    check_writable(path, f"--run_dir={path}")
    check_is_no_pattern(path)


def check_is_no_pattern(path: pathlib.Path) -> None:
    """Checks that TensorFlow finds checkpoints below a path.

    Its reader looks for files that match the path (TensorFlow 2.21,
    tensorflow/core/util/tensor_slice_reader.cc), and a path with [0.1] does not match
    itself. It can write there nevertheless.

    Raises:
      UsageError: The path does not match itself.
    """
    if "\\" in str(path) or not fnmatch.fnmatchcase(str(path), str(path)):
        raise UsageError(
            f"--run_dir={path} cannot be used: TensorFlow takes [...] and \\ in the "
            "path of a checkpoint for a pattern, and would not find it; choose a path "
            "without."
        )


def checkpoints_in(folder: pathlib.Path) -> dict[int, pathlib.Path]:
    """Returns the paths of all checkpoints by step, damaged ones included."""
    if not folder.is_dir():
        return {}
    found = {}
    # Files and links with such a name count as well: a run whose checkpoint was
    # replaced by one must fail instead of starting again from step 0.
    for path in folder.iterdir():
        match = _NAME.fullmatch(path.name)
        # Rejects other spellings of a step, with additional leading zeros.
        if match and path.name == name_of(int(match[1])):
            found[int(match[1])] = path
    return found
