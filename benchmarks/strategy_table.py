"""Compares all strategies on three models, and writes docs/results.md.

  python -m benchmarks.strategy_table            # about half an hour; `make table`
  python -m benchmarks.strategy_table --render   # writes the page of the last results

An interrupted table continues at the same commit: finished runs are not repeated.
"""

import argparse
import dataclasses
import json
import pathlib
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.record import RESULTS, ROOT, this_machine
from benchmarks.strategy_page import PAGE, PICTURE, draw, page
from strategies import registry
from strategies.common.files import write_atomically, write_json

RECORD = RESULTS / "strategy_table.json"
_COMPARED = ("examples_per_second", "eval_accuracy")


@dataclasses.dataclass(frozen=True, slots=True)
class ComparedModel:
    """A model that all strategies train, with its description for the page."""

    name: str
    model: str
    flags: Sequence[str]


MODELS = (
    ComparedModel(
        "dense",
        "64-512-512-10 on digits",
        ("--model=mlp", "--hidden_units=512,512"),
    ),
    ComparedModel("convolution", "a small convolutional network on digits", ()),
    ComparedModel(
        "embedding",
        "embeddings of categorical columns and a small dense network on clicks",
        (
            "--model=wide_embedding",
            "--dataset=clicks",
            "--set=data.num_examples=131072",
        ),
    ),
)
# Steps that take one device two seconds and more: shorter runs differ by a tenth
# (docs/comparison.md). One point is four of the 359 images that digits holds out.
_SHARED_FLAGS = (
    "--seeds=3-6",
    "--until=verdict",
    "--train_steps=1000",
    "--set=comparison.accuracy_margin_points=1",
)


def main() -> int:
    """Returns 1 if a comparison has failed."""
    arguments = _parse_arguments()
    if not arguments.render:
        record: dict[str, Any] = {"machine": this_machine(), "subjects": {}}
        for model in MODELS:
            command = command_of(model)
            print(shlex.join(["python", *command[1:]]), flush=True)
            folder = folder_of(model.name)
            code = subprocess.run([*command, f"--run_dir={folder}"], check=False)
            if code.returncode:
                return 1
            record["subjects"][model.name] = {
                "model": model.model,
                "command": shlex.join(["python", *command[1:]]),
                **summary_of(json.loads((folder / "comparison.json").read_text())),
            }
        write_json(RECORD, record)
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    write_atomically(PAGE, page(recorded))
    draw(recorded, PICTURE)
    print(f"{PAGE.relative_to(ROOT)} and {PICTURE.relative_to(ROOT)} are written")
    return 0


def command_of(model: ComparedModel) -> list[str]:
    """Returns the command that compares all strategies in all their ways to update."""
    arms = [f"--arm={name}: {' '.join(flags)}" for name, flags in arms_of().items()]
    start = [sys.executable, "-m", "trainers.main", "--mode=compare"]
    return [*start, *arms, *model.flags, *_SHARED_FLAGS]


def arms_of() -> dict[str, tuple[str, ...]]:
    """Returns the flags of an arm for each strategy and each of its update modes."""
    arms: dict[str, tuple[str, ...]] = {}
    for strategy in registry.names():
        updates = sorted(registry.traits(strategy).updates, reverse=True)
        for update in updates:
            flags = (f"--strategy={strategy}", f"--update={update}")
            arms[f"{strategy}-{update}"] = flags
        if not updates:
            arms[strategy] = (f"--strategy={strategy}",)
    return arms


def summary_of(comparison: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parts of a comparison.json that the page shows."""
    arms = [
        {
            **{key: arm[key] for key in ("name", "num_completed", "communication")},
            "num_replicas": arm["num_replicas"],
            "means": {name: arm["means"].get(name) for name in _COMPARED},
            "staleness": _values_of(arm, "mean_staleness"),
            "reason": next((r["reason"] for r in arm["runs"] if r["reason"]), ""),
        }
        for arm in comparison["arms"]
    ]
    shared = ("created", "commits", "control", "confidence", "stopping")
    return {
        **{key: comparison[key] for key in shared},
        "accuracy_margin_points": comparison["accuracy_margin_points"],
        "speed_margin_percent": comparison["speed_margin_percent"],
        "remarks": comparison["remarks"],
        "arms": arms,
        "comparisons": [
            {key: c[key] for key in ("metric", "arm", "estimate", "interval")}
            | {"verdict": c["verdict"] and c["verdict"]["words"]}
            for c in comparison["comparisons"]
            if c["metric"] in _COMPARED
        ],
    }


def _values_of(arm: Mapping[str, Any], metric: str) -> list[float]:
    values = [run["figures"].get(metric) for run in arm["runs"]]
    return [value for value in values if value is not None]


def folder_of(name: str) -> pathlib.Path:
    """Returns the folder of a benchmark's runs, another one for other code."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    return ROOT / "build" / "benchmarks" / commit / name


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--render", action="store_true", help="run nothing, write the page again"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
