"""The search in words, and in comparison.json."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from strategies.common.text import as_argument
from trainers.config.groups import option
from trainers.experiments.tune.search import Found
from trainers.experiments.tune.tuning import Tuning


def plan_in_words(tuning: Tuning, num_arms: int) -> str:
    """Returns what a search will run, before it starts."""
    low, high = tuning.values[0], tuning.values[-1]
    runs = ", ".join(f"{r.num_values} of {r.steps:,} steps" for r in tuning.rungs)
    share = tuning.search_steps / tuning.grid_steps
    return (
        f"{option(tuning.setting)} from {low:g} to {high:g} in {len(tuning.values)} "
        f"values; runs of each arm: {runs}; {num_arms * tuning.search_steps:,} steps, "
        f"{100 * share:.3g} % of whole runs of all values"
    )


def content_of(tuning: Tuning, found: Sequence[Found]) -> dict[str, Any]:
    """Returns `tuning` of comparison.json."""
    return {
        "setting": tuning.setting,
        "option": option(tuning.setting),
        "is_logarithmic": tuning.is_logarithmic,
        "seed": tuning.seed,
        "rungs": [{"num_values": r.num_values, "steps": r.steps} for r in tuning.rungs],
        # Length of the runs with the given values, and with the tuned ones.
        "compared_steps": tuning.rungs[-1].steps,
        "steps": {
            "search": sum(_search_steps(each) for each in found),
            "with_given_values": sum(each.steps for each in found),
            "grid": len(found) * tuning.grid_steps,
        },
        "arms": [_arm(tuning, each) for each in found],
        "differences": [
            _difference(tuning, one, other)
            for one, other in itertools.combinations(found, 2)
        ],
    }


def _search_steps(found: Found) -> int:
    return sum(steps for trial in found.trials for steps in trial.losses)


def _arm(tuning: Tuning, found: Found) -> dict[str, Any]:
    return {
        "name": found.arm.name,
        "given": found.given,
        "given_loss": found.given_loss,
        "best": found.best.value,
        "tuned": found.chosen.value,
        "tuned_loss": found.chosen.losses[tuning.rungs[-1].steps],
        "trials": [
            {
                "value": trial.value,
                "runs": [
                    {
                        "steps": steps,
                        "loss": loss,
                        "status": found.runs[trial.value, steps].status,
                        "run_dir": str(found.runs[trial.value, steps].path),
                    }
                    for steps, loss in trial.losses.items()
                ],
            }
            for trial in found.trials
        ],
    }


def _difference(tuning: Tuning, control: Found, other: Found) -> dict[str, Any]:
    """Returns the difference of two arms with the given and with the tuned values."""
    steps = tuning.rungs[-1].steps
    at_given = _minus(other.given_loss, control.given_loss)
    at_tuned = _minus(other.chosen.losses[steps], control.chosen.losses[steps])
    return {
        "arm": other.arm.name,
        "control": control.arm.name,
        "at_given": at_given,
        "at_tuned": at_tuned,
        "only_tuning": _minus(at_given, at_tuned),
    }


def _minus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def words_of_arms(tuning: Mapping[str, Any]) -> list[str]:
    """Returns a line for each arm.

    Args:
      tuning: `tuning` of comparison.json.
    """
    return [
        f"{arm['name']}: {tuning['option']}={arm['tuned']:g}, loss "
        f"{arm['tuned_loss']:.4g} after {tuning['compared_steps']:,} steps; with "
        f"{as_argument(arm['given'])} as given {_shown(arm['given_loss'], '.4g')}"
        f"{_of_another(arm)}"
        for arm in tuning["arms"]
    ]


def _of_another(arm: Mapping[str, Any]) -> str:
    """Returns why an arm has not its best value; "" if it has."""
    if arm["best"] == arm["tuned"]:
        return ""
    return f"; {arm['best']:g} is not clearly better, and not for all arms"


def words_of_differences(tuning: Mapping[str, Any]) -> list[str]:
    """Returns a line for each pair of arms: how much of a difference was only tuning.

    Args:
      tuning: `tuning` of comparison.json.
    """
    return [
        f"loss of {pair['arm']} minus that of {pair['control']} after "
        f"{tuning['compared_steps']:,} steps: {_shown(pair['at_given'], '+.4f')} as "
        f"given, {_shown(pair['at_tuned'], '+.4f')} tuned; "
        f"{_shown(pair['only_tuning'], '+.4f')} was only tuning (one run each, no "
        "verdict)"
        for pair in tuning["differences"]
    ]


def _shown(loss: float | None, form: str) -> str:
    # Adding zero makes -0.0000 of a tiny negative number positive.
    return "unknown" if loss is None else format(round(loss, 4) + 0.0, form)
