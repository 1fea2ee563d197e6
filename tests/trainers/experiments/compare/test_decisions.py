"""--mode=compare with runs made by hand: which runs it has, and what it concludes.

test-exhaustive has real runs instead.
"""

import json
import math
import pathlib

import pytest
from scipy import stats

from tests.trainers.experiments.compare.run_factory import Compare
from tests.trainers.experiments.compare.test_running import (
    COMPARE,
    RUNS,
    SMALL,
    conclusion_of,
)
from tests.trainers.experiments.interruption import results_in


def test_seeds_that_are_added_are_tested_with_the_error_rate_that_is_left(
    compare: Compare, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "comparison"
    first = compare(*COMPARE)
    assert first.returncode == 0, first.stderr
    more = compare(*COMPARE, "--seeds=3")
    assert more.returncode == 0, more.stderr
    plan = json.loads((folder / "plan.json").read_text("utf-8"))
    assert plan["looks"] == [[2, 2], [3, 3]]
    conclusion = conclusion_of(folder)
    assert conclusion["seeds"] == [0, 1, 2]
    tested = [c for c in conclusion["comparisons"] if c["p_value"] is not None]
    assert {"examples_per_second", "eval_accuracy"} <= {c["metric"] for c in tested}
    for entry in tested:
        # Half of the tenth that the plan has kept.
        assert entry["p_value_looks"] == pytest.approx(min(entry["p_value"] / 0.05, 1))
        assert entry["p_value_holm"] == entry["p_value_looks"]
    (speed,) = (c for c in tested if c["metric"] == "examples_per_second")
    low, high = map(math.log, speed["interval"])
    reach = stats.t.ppf(1 - 0.05 * 0.05 / 2, 2) * speed["deviation"] / math.sqrt(3)
    assert (high - low) / 2 == pytest.approx(reach)

    before = conclusion_of(folder)
    fewer = compare(*COMPARE)
    assert fewer.returncode == 2
    assert "holds a comparison of 3 seeds, and --seeds=2 is fewer" in fewer.stderr
    assert conclusion_of(folder) == before


UNTIL_VERDICT = (
    "--mode=compare",
    "--strategy=one_device",
    # Sleep takes most of a step, so that speeds hardly depend on the machine's load.
    "--set=length.step_delay_milliseconds=10",
    "--arm=control: --learning_rate=0.011",
    "--arm=other: --learning_rate=0.015",
    "--arm=slow: --set=length.step_delay_milliseconds=150",
    "--seeds=3-4",
    "--drop_losers",
    # Tenfold: with a margin of 300 % three seeds were undecided beside other work.
    "--set=comparison.speed_margin_percent=1000",
    "--run_dir=comparison",
    *SMALL,
)


def test_a_comparison_looks_after_every_seed_and_drops_what_is_slower(
    compare: Compare, tmp_path: pathlib.Path
) -> None:
    done = compare(*UNTIL_VERDICT)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "comparison"
    plan = json.loads((folder / "plan.json").read_text("utf-8"))
    assert plan["looks"] == [[3, 4]]
    lines = done.stdout.splitlines()
    assert "look after 3 seeds | 1 of 2 verdicts | probably 4 seeds" in lines
    # The accuracies of a seed are the same on every machine: 3 and 4 are too few here.
    assert "  undecided: accuracy of other" in lines
    conclusion = conclusion_of(folder)
    assert conclusion["stopping"] == "4 of 3 to 4: not every arm has its verdicts"
    assert "seeds     4 of 3 to 4: not every arm has its verdicts" in lines
    assert "slow was dropped after 3 seeds" in "".join(conclusion["remarks"])
    assert [len(arm["runs"]) for arm in conclusion["arms"]] == [4, 4, 3]

    # Continued by the same command, it decides the same again.
    before = results_in(folder, RUNS)
    again = compare(*UNTIL_VERDICT)
    assert again.returncode == 0, again.stderr
    assert results_in(folder, RUNS) == before
    assert conclusion_of(folder)["comparisons"] == conclusion["comparisons"]

    # With a wide margin, it would have been over at once.
    wide = compare(*UNTIL_VERDICT, "--set=comparison.accuracy_margin_points=99")
    assert wide.returncode == 0, wide.stderr
    assert (
        conclusion_of(folder)["stopping"] == "3 of 3 to 4: every arm has its verdicts"
    )
