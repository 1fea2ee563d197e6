"""commit.json: what declares a checkpoint complete, and proves that it still is.

It holds the size and digest of every other file of the checkpoint's folder, and a
digest of itself.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import stat
from collections.abc import Mapping, Sequence
from typing import Any

from strategies.common.files import sync_to_disk
from strategies.common.text import shown

_NAME = "commit.json"
_SCHEMA_VERSION = 1
_OBJECTS = ("files", "variables", "state")

# Far more than names and sums need. A file that is larger is not one of ours.
_MOST_BYTES = 16 << 20


class DamagedError(Exception):
    """A checkpoint is not what was written."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """What there is to know about a variable without its value."""

    path: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.path} ({self.dtype} {list(self.shape)})"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """What a checkpoint says about itself.

    Attributes:
      step: applied updates.
      variables: of the model and of the optimizer, in their order.
      state: values a resumed run needs besides variables, as JSON has them.
    """

    step: int
    variables: Mapping[str, Sequence[Variable]]
    state: Mapping[str, Any]


def write_commit(folder: pathlib.Path, commit: Commit) -> None:
    """Writes the file that declares a checkpoint complete, after all others."""
    files = {}
    for path in sorted(folder.iterdir()):
        sync_to_disk(path)
        files[path.name] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
    content = {
        "schema_version": _SCHEMA_VERSION,
        "step": commit.step,
        "files": files,
        "variables": {
            owner: [dataclasses.asdict(variable) for variable in variables]
            for owner, variables in commit.variables.items()
        },
        "state": dict(commit.state),
    }
    content["sha256"] = _digest(content)
    path = folder / _NAME
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    sync_to_disk(path)
    sync_to_disk(folder)


def read_commit(folder: pathlib.Path, step: int) -> Commit:
    """Reads commit.json and checks every file of a checkpoint against it.

    Nothing outside the folder is opened, whatever names or links are in it.

    Args:
      folder: of the checkpoint.
      step: what its name says.

    Raises:
      DamagedError: something is missing, changed or added.
    """
    try:
        return _read_commit(folder, step)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(" ".join(str(error).split())[:200]) from error


def _read_commit(folder: pathlib.Path, step: int) -> Commit:
    if folder.is_symlink() or not folder.is_dir():
        raise DamagedError("it is not a folder")
    content = _checked_content(folder / _NAME)
    if type(content["step"]) is not int or content["step"] != step:
        raise DamagedError(f"its {_NAME} is of step {shown(content['step'])}")
    _check_files(folder, content["files"])
    variables = {
        owner: [_variable(v) for v in of_owner]
        for owner, of_owner in content["variables"].items()
    }
    return Commit(step=step, variables=variables, state=content["state"])


def _variable(content: Mapping[str, Any]) -> Variable:
    path, dtype, shape = content["path"], content["dtype"], content["shape"]
    return Variable(path=path, dtype=dtype, shape=tuple(shape))


def _checked_content(path: pathlib.Path) -> dict[str, Any]:
    """commit.json as it was written."""
    if _bytes_of_regular_file(path) > _MOST_BYTES:
        raise DamagedError(f"{path.name} is larger than {_MOST_BYTES} bytes")
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise DamagedError(f"{path.name} is not an object")
    if content.get("schema_version") != _SCHEMA_VERSION:
        version = shown(content.get("schema_version"))
        raise DamagedError(f"schema_version {version} of {path.name} is unknown")
    if content.pop("sha256", None) != _digest(content):
        raise DamagedError(f"{path.name} is not what was written")
    if not all(isinstance(content[key], dict) for key in _OBJECTS):
        raise DamagedError(f"{path.name} is not of the right form")
    return content


def _check_files(folder: pathlib.Path, expected: Mapping[str, Any]) -> None:
    """Compares the files that are there with those that were written.

    Going through the folder rather than through the names in commit.json means
    that no name, such as ../x, can lead out of it.
    """
    present = {path.name: path for path in folder.iterdir() if path.name != _NAME}
    for name in sorted(expected.keys() - present.keys()):
        raise DamagedError(f"{shown(name)} is missing")
    for name in sorted(present.keys() - expected.keys()):
        raise DamagedError(f"{shown(name)} does not belong to it")
    if "variables.index" not in present:
        raise DamagedError("it holds no variables")
    for name, path in present.items():
        written = (expected[name]["bytes"], expected[name]["sha256"])
        if (_bytes_of_regular_file(path), _sha256(path)) != written:
            raise DamagedError(f"{name} is not what was written")


def _bytes_of_regular_file(path: pathlib.Path) -> int:
    """Refuses links, which may lead anywhere, and pipes, which never end."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise DamagedError(f"{path.name} is not a file")
    return status.st_size


def _digest(content: Mapping[str, Any]) -> str:
    """Of the values, however they are laid out."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sha256(path: pathlib.Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
