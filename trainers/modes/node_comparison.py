"""Node information of a task, and its comparison between tasks."""

import hashlib
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from strategies.common.text import as_argument, counted, shown
from trainers.config.config import Config
from trainers.config.groups import option
from trainers.reporting.result import hardware, versions

# Versions in pyproject.toml; a test compares them.
SUPPORTED = {"tensorflow": "2.21", "keras": "3.15"}

# Settings that may differ between tasks of one training: of a machine, such as paths,
# of a process, or of the chief alone.
_MAY_DIFFER = {
    "verbose", "warm_start", "resume", "intra_op_threads", "inter_op_threads",
    "devices", "memory_growth", "memory_limit_mib", "memory_fraction",
    "data_path", "eval_data_path", "initial_weights", "script_arguments",
    "startup_timeout_seconds", "peer_timeout_seconds", "stop_timeout_seconds",
    "stall_timeout_seconds", "log_device_placement", "keep_checkpoints",
    "tensorboard_dir", "trackers", "tracker_experiment", "tracker_group",
}  # fmt: skip


def collect_node_info(config: Config) -> dict[str, Any]:
    """Returns versions, devices and settings of this process as JSON values."""
    found = hardware()
    return {
        "versions": versions(),
        "source": source_digest(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": found["memory_mib"],
        "gpus": found["gpus"],
        "settings": config.to_dict(),
    }


def unsupported(node_info: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line for each unsupported version of this process."""
    for name, accepted in SUPPORTED.items():
        version = node_info["versions"][name]
        if ".".join(version.split(".")[:2]) != accepted:
            words = f"install {accepted} (make install)"
            yield f"{name} {version} is not supported: {words}."


def differences(
    task: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]
) -> Iterator[tuple[Literal["problem", "warning"], str]]:
    """Yields differences that prevent, or may affect, training of two tasks.

    The node information of the other task may be any JSON object.

    Yields:
      Kind (`problem` or `warning`) and text.
    """
    for name, version in ours["versions"].items():
        other = _part(theirs, "versions").get(name)
        if other != version:
            yield (
                # Different versions of Python or NumPy can train together.
                "problem" if name in SUPPORTED else "warning",
                f"{task} has {name} {shown(other)}, and this task {version}: install "
                "the same on every machine.",
            )
    if theirs.get("source") != ours["source"]:
        yield (
            "warning",
            f"{task} runs another state of this program's source: update one of them.",
        )
    settings = _part(theirs, "settings")
    different = ", ".join(
        f"{option(name)}={shown(as_argument(settings.get(name)))} (here "
        f"{shown(as_argument(value))})"
        for name, value in ours["settings"].items()
        if settings.get(name) != value and name not in _MAY_DIFFER
    )
    if different:
        yield (
            "problem",
            f"{task} was given {different}: give every task the same flags.",
        )


def in_words(node_info: Mapping[str, Any]) -> str:
    """Returns the devices in another task's information, any JSON object, as text."""
    gpus, cores = node_info.get("gpus"), node_info.get("cores")
    count = len(gpus) if isinstance(gpus, list) else 0
    known = (
        counted(cores, "core") if isinstance(cores, int) else f"{shown(cores)} cores"
    )
    return f"reached: {known}, {counted(count, 'GPU')}"


def _part(node_info: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = node_info.get(name)
    return part if isinstance(part, dict) else {}


def source_digest() -> str:
    """Returns a digest of this program's source."""
    root = pathlib.Path(__file__).parents[2]
    digest = hashlib.sha256()
    for package in ("models", "strategies", "trainers"):
        # Sorted, because the file system's order differs between machines.
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
