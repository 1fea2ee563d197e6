"""Runs the real entry point as a process."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent


def run_main(*flags: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """`python -m trainers.main` with these flags, from the root of the repository."""
    return subprocess.run(
        [sys.executable, "-m", "trainers.main", *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
    )


def train(run_dir: pathlib.Path, *flags: str) -> dict[str, Any]:
    """Trains into a folder and returns its result.json."""
    done = run_main(f"--run_dir={run_dir}", *flags)
    assert done.returncode == 0, done.stderr[-3000:]
    return read_result(run_dir)


def read_result(run_dir: pathlib.Path) -> dict[str, Any]:
    return json.loads((run_dir / "result.json").read_text(encoding="utf-8"))


def read_metrics(run_dir: pathlib.Path) -> list[dict[str, Any]]:
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
