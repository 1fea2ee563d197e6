"""Reads what Weights & Biases has kept for later, with its own records.

A file is LevelDB's log format after a header of seven bytes: blocks of 32 KiB, and in
them chunks of a record with checksum, length and kind
(https://github.com/google/leveldb/blob/main/doc/log_format.md).
"""

import dataclasses
import fnmatch
import json
import os
import pathlib
import struct
from collections.abc import Iterator
from typing import Any

from wandb.proto import wandb_internal_pb2

_HEADER_BYTES = 7
_BLOCK_BYTES = 32 * 1024
_WHOLE_OR_LAST = (1, 4)


@dataclasses.dataclass(frozen=True)
class Offline:
    """One session of a run.

    Attributes:
      run: Values that the session was begun with.
      config: Settings, including later ones.
      rows: Rows of the history.
      summary: Summary at the end.
      exit_code: Exit code; None if no end was reported.
    """

    run: Any
    config: dict[str, Any]
    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    exit_code: int | None


def sessions_below(folder: pathlib.Path) -> list[Offline]:
    """Returns all sessions that were kept below a folder, the oldest first.

    While a run continues, folders of checkpoints vanish: os.walk skips them, where
    Path.rglob of Python 3.11 fails.
    """
    files = [
        pathlib.Path(inner, name)
        for inner, _, names in os.walk(folder)
        for name in names
        if fnmatch.fnmatch(name, "run-*.wandb")
    ]
    return [_read(path) for path in sorted(files)]


def _read(path: pathlib.Path) -> Offline:
    run, exit_code = None, None
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    rows = []
    for record in _records(path.read_bytes()):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
            config |= _values(run.config.update)
        elif kind == "history":
            rows.append(_values(record.history.item))
        elif kind == "summary":
            summary |= _values(record.summary.update)
        elif kind == "exit":
            exit_code = record.exit.exit_code
    return Offline(run, config, rows, summary, exit_code)


def _values(items: Any) -> dict[str, Any]:
    return {
        item.key or "/".join(item.nested_key): json.loads(item.value_json)
        for item in items
    }


def _records(content: bytes) -> Iterator[Any]:
    whole, position = b"", _HEADER_BYTES
    while position + _HEADER_BYTES <= len(content):
        left = _BLOCK_BYTES - position % _BLOCK_BYTES
        if left < _HEADER_BYTES:
            position += left
            continue
        length, kind = struct.unpack_from("<HB", content, position + 4)
        start = position + _HEADER_BYTES
        whole += content[start : start + length]
        position = start + length
        if kind in _WHOLE_OR_LAST:
            yield wandb_internal_pb2.Record.FromString(whole)  # type: ignore[attr-defined]
            whole = b""
