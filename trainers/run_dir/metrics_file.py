"""metrics.jsonl: a row for each report of a run."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from strategies.common.files import append_whole, without_nan, write_atomically


class MetricsFile:
    """Rows of metrics, each a JSON object with its `step`, one per line."""

    def __init__(self, path: pathlib.Path):
        """Sets the path; the file may not exist yet."""
        self.path = path

    def rows(self) -> list[dict[str, Any]]:
        """Returns all rows, without lines that are not complete."""
        if not self.path.exists():
            return []
        rows = []
        text = self.path.read_text(encoding="utf-8", errors="replace")
        for line in text.split("\n"):
            try:
                row = json.loads(line)
            # A killed run may leave its last line truncated.
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                rows.append(row)
        return rows

    def rows_until(self, step: int) -> list[dict[str, Any]]:
        """Returns the rows up to and including a step."""
        return [row for row in self.rows() if row["step"] <= step]

    def append(self, row: Mapping[str, Any]) -> None:
        append_whole(self.path, json.dumps(without_nan(row)) + "\n")

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replaces all rows."""
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in rows))

    def drop_after(self, step: int) -> None:
        """Removes the rows of later steps."""
        self.write(self.rows_until(step))
