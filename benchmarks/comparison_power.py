"""How often a comparison is wrong, and how often it finds a slower arm.

  python -m benchmarks.comparison_power --record=30   # real runs, on an idle machine
  python -m benchmarks.comparison_power               # judges them, writes results/

Recording runs blocks of three runs with one seed in shuffled order, as a comparison
does: the same arm twice, and that arm with a delay of 10 % of its step. A block
counts only if no other program used more than a tenth of a core meanwhile. Judging
draws comparisons of 5 different blocks each, and asks for their verdict as
--mode=compare does.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import pathlib
import random
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import psutil

from strategies.common.files import write_json
from trainers.experiments.compare import verdicts
from trainers.experiments.compare.statistics import detectable, paired
from trainers.experiments.measurement import measure
from trainers.experiments.run_record import Run, read_run

RESULTS = pathlib.Path(__file__).parent / "results"
RUNS = RESULTS / "comparison_power_runs.json"
ARMS = ("control", "again", "delayed")
# Seconds of training on one core: on a machine of two cores, equal runs of 300 steps on
# both differed by 11 %, these by 4 %.
FLAGS = (
    "--train_steps=1500",
    "--set=threads.intra_op_threads=1",
    "--set=threads.inter_op_threads=1",
    "--checkpoint_every_steps=none",
    "--set=report.histogram_every_steps=none",
    "--eval_every_steps=none",
)
SLOWER = 0.10
SEEDS = 5
_MOST_OTHERS = 0.1
_SECONDS_TO_WAIT = 20.0

Block = dict[str, float]


def record(num_blocks: int, most_seconds: float) -> None:
    """Real runs, kept as they come; fewer if the machine is not idle long enough."""
    deadline = time.monotonic() + most_seconds
    first = _undisturbed_run(deadline)
    step_milliseconds = first.figures(None)["step_milliseconds_p50"] or 0.0
    recorded: dict[str, Any] = {
        "flags": [*FLAGS],
        "step_delay_milliseconds": round(SLOWER * step_milliseconds, 3),
        "hardware": first.result["hardware"],
        "recorded": datetime.date.today().isoformat(),
        "num_disturbed_blocks": 0,
        "blocks": [],
    }
    while len(recorded["blocks"]) < num_blocks and _wait_until_idle(deadline):
        seed = len(recorded["blocks"])
        block = _block(seed, recorded["step_delay_milliseconds"])
        if block is None:
            recorded["num_disturbed_blocks"] += 1
        else:
            recorded["blocks"].append(block)
            print(seed, block, flush=True)
        write_json(RUNS, recorded)


def _undisturbed_run(deadline: float) -> Run:
    while _wait_until_idle(deadline):
        run = _run(seed=0, delay_milliseconds=0.0)
        if run is not None:
            return run
    sys.exit("the machine was never idle: end other programs, and try again.")


def _block(seed: int, delay_milliseconds: float) -> Block | None:
    speeds = {}
    for arm in random.Random(seed).sample(ARMS, len(ARMS)):
        run = _run(seed, delay_milliseconds if arm == "delayed" else 0.0)
        if run is None:
            return None
        speeds[arm] = run.figures(None)["examples_per_second"] or 0.0
    return {arm: speeds[arm] for arm in ARMS}


def _run(seed: int, delay_milliseconds: float) -> Run | None:
    """A run; None if other programs were busy meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "run"
        command = [sys.executable, "-m", "trainers.main", *FLAGS, f"--seed={seed}"]
        command += [f"--run_dir={path}"]
        if delay_milliseconds:
            command += [f"--set=length.step_delay_milliseconds={delay_milliseconds}"]
        log = pathlib.Path(folder) / "log"
        measured = measure(command, log, stop_requested=lambda: False)
        if measured is None or measured.other_busy_cores > _MOST_OTHERS:
            return None
        return read_run(path, arm="", seed=seed)


def _wait_until_idle(deadline: float) -> bool:
    while time.monotonic() < deadline:
        busy_cores = psutil.cpu_percent(interval=1.0) / 100 * (os.cpu_count() or 1)
        if busy_cores <= _MOST_OTHERS:
            return True
        time.sleep(_SECONDS_TO_WAIT * random.random())
    return False


def verdict(speeds: Sequence[float], control: Sequence[float]) -> str:
    """The kind of verdict that --mode=compare gives on these speeds."""
    logs = [math.log(a) - math.log(b) for a, b in zip(speeds, control, strict=True)]
    summary = paired(logs, with_bootstrap=False)
    ends = summary.interval or (0.0, 0.0)
    entry = {
        "num_pairs": summary.num_pairs,
        "estimate": math.exp(summary.mean),
        "interval": [math.exp(end) for end in ends],
        "p_value_holm": summary.p_value,
        "detectable": math.exp(detectable(summary, 1)),
        "words": ("faster", "slower", "no detectable difference"),
        "reason": "",
    }
    return verdicts.of_ratio(entry)[0]


def share_different(
    blocks: Sequence[Block], arm: str, num_comparisons: int, seed: int
) -> float:
    """Of comparisons of an arm with the control that say they differ."""
    generator = np.random.default_rng(seed)
    different = 0
    for _ in range(num_comparisons):
        # No comparison has the same run twice, which would make it look more certain.
        chosen = generator.choice(len(blocks), size=SEEDS, replace=False)
        drawn = [blocks[i] for i in chosen]
        speeds = [block[arm] for block in drawn]
        control = [block["control"] for block in drawn]
        # Which of two equal runs is called the control is up to chance.
        if arm == "again":
            flips = generator.integers(2, size=SEEDS)
            pairs = [
                (b, a) if flip else (a, b)
                for a, b, flip in zip(speeds, control, flips, strict=True)
            ]
            speeds, control = [a for a, _ in pairs], [b for _, b in pairs]
        different += verdict(speeds, control) == verdicts.DIFFERENT
    return different / num_comparisons


def coverage(num_values: int, num_comparisons: int, seed: int) -> dict[str, float]:
    """How often intervals of normal differences hold the truth."""
    generator = np.random.default_rng(seed)
    inside = {"t": 0, "bootstrap": 0}
    for _ in range(num_comparisons):
        summary = paired(generator.normal(size=num_values))
        intervals = (summary.interval, summary.bootstrap_interval)
        for name, ends in zip(inside, intervals, strict=True):
            inside[name] += ends is not None and ends[0] <= 0 <= ends[1]
    return {name: count / num_comparisons for name, count in inside.items()}


def judge(recorded: dict[str, Any]) -> dict[str, Any]:
    """Shares of wrong and right verdicts, and what intervals are worth."""
    blocks = recorded["blocks"]
    logs = {
        arm: np.log([block[arm] / block["control"] for block in blocks])
        for arm in ("again", "delayed")
    }
    return {
        "recorded": {k: v for k, v in recorded.items() if k != "blocks"},
        "num_blocks": len(blocks),
        "seeds": SEEDS,
        "deviation_of_equal_arms": float(logs["again"].std(ddof=1)),
        "mean_ratio_of_delayed": float(np.exp(logs["delayed"].mean())),
        "different_of_40": {
            "same arm": round(40 * share_different(blocks, "again", 40, seed=0)),
            "10 % slower": round(40 * share_different(blocks, "delayed", 40, seed=0)),
        },
        "different_of_4000": {
            "same arm": share_different(blocks, "again", 4000, seed=1),
            "10 % slower": share_different(blocks, "delayed", 4000, seed=1),
        },
        "coverage_of_normal_differences": {
            str(n): coverage(n, 1000, seed=n) for n in (3, 5, 10)
        },
    }


def as_markdown(found: dict[str, Any]) -> str:
    """The results as a page."""
    hardware = found["recorded"]["hardware"]
    of_40, of_4000 = found["different_of_40"], found["different_of_4000"]
    lines = [
        "# How often a comparison is right",
        "",
        f"{found['num_blocks']} blocks of real runs "
        f"(`{' '.join(found['recorded']['flags'])}`), recorded on "
        f"{found['recorded']['recorded']}, {hardware['cpu_cores']} cores of "
        f"{hardware['cpu']}, "
        f"drawn into comparisons of {found['seeds']} different ones each.",
        "",
        "| compared | said to differ, of 40 | of 4,000 |",
        "|---|---|---|",
        *(f"| {n} | {of_40[n]} | {of_4000[n]:.1%} |" for n in of_40),
        "",
        f"Log ratios of equal arms have a standard deviation of "
        f"{found['deviation_of_equal_arms']:.2%}; the delayed arm runs at "
        f"{found['mean_ratio_of_delayed']:.3f} of the control's speed.",
        "",
        "| seeds | 95 % interval by t holds the truth | by bootstrap |",
        "|---|---|---|",
    ]
    for seeds, shares in found["coverage_of_normal_differences"].items():
        lines.append(f"| {seeds} | {shares['t']:.1%} | {shares['bootstrap']:.1%} |")
    lines += ["", "Made by `python -m benchmarks.comparison_power`.", ""]
    return "\n".join(lines)


def main() -> None:
    """Records, or judges what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=int, help="blocks of runs to record")
    parser.add_argument("--most_seconds", type=float, default=3600.0)
    arguments = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    if arguments.record:
        record(arguments.record, arguments.most_seconds)
        return
    if not RUNS.exists():
        sys.exit("nothing is recorded yet: give --record=30 first.")
    recorded = json.loads(RUNS.read_text(encoding="utf-8"))
    found = judge(recorded)
    cpu = re.sub(r"\W+", "-", recorded["hardware"]["cpu"]).strip("-").lower()
    name = f"comparison_power_{recorded['hardware']['cpu_cores']}x-{cpu}"
    path = RESULTS / f"{name}_{recorded['recorded']}"
    write_json(path.with_suffix(".json"), found)
    path.with_suffix(".md").write_text(as_markdown(found), encoding="utf-8")
    print(as_markdown(found))


if __name__ == "__main__":
    main()
