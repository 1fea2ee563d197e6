"""What the folders of checkpoints are called. Nothing here imports TensorFlow."""

from __future__ import annotations

import pathlib
import re

_NAME = re.compile(r"step-([0-9]{8,18})")


def name_of(step: int) -> str:
    """Of the folder of a checkpoint."""
    return f"step-{step:08d}"


def checkpoints_in(folder: pathlib.Path) -> dict[int, pathlib.Path]:
    """By step, all that has the name of a checkpoint, be it damaged.

    A file or a link of such a name counts, so that a run whose checkpoint was
    replaced by one does not begin anew as if there had been none.
    """
    if not folder.is_dir():
        return {}
    found = {}
    for path in folder.iterdir():
        match = _NAME.fullmatch(path.name)
        # One step has one name, whatever zeros others put in front of it.
        if match and path.name == name_of(int(match[1])):
            found[int(match[1])] = path
    return found
