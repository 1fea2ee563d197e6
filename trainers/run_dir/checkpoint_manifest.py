"""Manifest of a checkpoint (commit.json): completeness and integrity.

It holds the size and digest of every other file in the checkpoint's folder, the state
of the run unless that is large, and a digest of itself.
"""

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
# Holds the state if that is large, such as the best weights of EarlyStopping.
_STATE_NAME = "state.json"
_LARGE_STATE_CHARACTERS = 1 << 20
_SCHEMA_VERSION = 1
_OBJECTS = ("files", "variables", "state")

# Far more than names and digests need; a larger file was not written by this program.
_MOST_BYTES = 16 << 20


class DamagedError(Exception):
    """Difference between a checkpoint and its manifest."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """Path, type and shape of a variable, without its value."""

    # Keras numbers the names of objects that are created repeatedly.
    path: str = dataclasses.field(compare=False)
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.path} ({self.dtype} {list(self.shape)})"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """Content of a checkpoint's manifest.

    Attributes:
      step: Number of applied updates.
      variables: Variables of the model and of the optimizer, in their order.
      state: Further JSON values that a resumed run needs.
    """

    step: int
    variables: Mapping[str, Sequence[Variable]]
    state: Mapping[str, Any]


def write_commit(folder: pathlib.Path, commit: Commit) -> None:
    """Writes the manifest, which marks a checkpoint complete, after all other files."""
    state = dict(commit.state)
    if len(text := json.dumps(state)) > _LARGE_STATE_CHARACTERS:
        (folder / _STATE_NAME).write_text(text, encoding="utf-8")
        state = {}
    files = {}
    for path in sorted(folder.iterdir()):
        # Every file must be on disk before the manifest that vouches for it.
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
        "state": state,
    }
    # Digest of the content without this key; `_checked_content` removes the key again.
    content["sha256"] = _digest(content)
    path = folder / _NAME
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    sync_to_disk(path)
    # Makes the names of the files durable as well.
    sync_to_disk(folder)


def read_commit(folder: pathlib.Path, step: int) -> Commit:
    """Reads the manifest and checks every file of a checkpoint against it.

    No file outside the folder is opened, even if the folder contains links or the
    manifest contains paths.

    Raises:
      DamagedError: A file is missing, changed or unexpected.
    """
    try:
        return _read_commit(folder, step)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(" ".join(str(error).split())[:200]) from error


def _read_commit(folder: pathlib.Path, step: int) -> Commit:
    if folder.is_symlink() or not folder.is_dir():
        raise DamagedError("it is not a folder")
    content = _checked_content(folder / _NAME)
    # isinstance would accept True and False.
    if type(content["step"]) is not int or content["step"] != step:
        raise DamagedError(f"its {_NAME} is of step {shown(content['step'])}")
    _check_files(folder, content["files"])
    variables = {
        owner: [_variable(v) for v in of_owner]
        for owner, of_owner in content["variables"].items()
    }
    state = content["state"]
    if _STATE_NAME in content["files"]:
        state = json.loads((folder / _STATE_NAME).read_text(encoding="utf-8"))
    if not isinstance(state, dict):
        raise DamagedError(f"{_STATE_NAME} is not an object")
    return Commit(step=step, variables=variables, state=state)


def _variable(content: Mapping[str, Any]) -> Variable:
    path, dtype, shape = content["path"], content["dtype"], content["shape"]
    return Variable(path=path, dtype=dtype, shape=tuple(shape))


def _checked_content(path: pathlib.Path) -> dict[str, Any]:
    """Returns the content of commit.json after checking its size, form and digest."""
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
    """Compares the present files with the manifest.

    The function lists the folder instead of opening the names in commit.json, so no
    name, such as ../x, can lead out of the folder.
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
    """Returns the size of a file; raises `DamagedError` for a link or a pipe."""
    # lstat does not follow links, which may lead anywhere. A read from a pipe would
    # block.
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise DamagedError(f"{path.name} is not a file")
    return status.st_size


def _digest(content: Mapping[str, Any]) -> str:
    """Returns a digest of the values that does not depend on the layout of the file."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sha256(path: pathlib.Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
