"""Folder names of checkpoints.

This module does not import TensorFlow.
"""

from __future__ import annotations

import pathlib
import re

_NAME = re.compile(r"step-([0-9]{8,18})")


def name_of(step: int) -> str:
    """Returns the name of a checkpoint's folder."""
    return f"step-{step:08d}"


def checkpoints_in(folder: pathlib.Path) -> dict[int, pathlib.Path]:
    """Returns the paths of all checkpoints by step, damaged ones included.

    Args:
      folder: Folder of a run's checkpoints.
    """
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
