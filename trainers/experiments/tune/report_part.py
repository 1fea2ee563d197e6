"""The search in words, and in comparison.json."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from strategies.common.text import as_argument
from trainers.config.groups import option
from trainers.experiments.tune.search import TunedArm
from trainers.experiments.tune.tuning import Tuning


def plan_in_words(tuning: Tuning, num_arms: int) -> str:
    """Returns what a search will run, before it starts."""
    runs = ", ".join(f"{r.num_values} of {r.steps:,} steps" for r in tuning.rungs)
    return (
        f"{option(tuning.setting)} from {tuning.values[0]:g} to {tuning.values[-1]:g} "
        f"in {len(tuning.values)} values; runs of each arm: {runs}; "
        f"{num_arms * tuning.search_steps:,} steps, "
        f"{100 * tuning.search_steps / tuning.grid_steps:.3g} % of whole runs of all "
        "values"
    )


def content_of(tuning: Tuning, found: Sequence[TunedArm]) -> dict[str, Any]:
    """Returns `tuning` of comparison.json."""
    arms = [_arm(tuning, each) for each in found]
    return {
        "setting": tuning.setting,
        "option": option(tuning.setting),
        "is_logarithmic": tuning.is_logarithmic,
        "seed": tuning.seed,
        "rungs": [{"num_values": r.num_values, "steps": r.steps} for r in tuning.rungs],
        "compared_steps": tuning.rungs[-1].steps,
        "steps": {
            "search": sum(each.search_steps for each in found),
            "with_given_values": sum(steps for each in found for _, steps in each.runs),
            "grid": len(found) * tuning.grid_steps,
        },
        "arms": arms,
        "differences": [_pair(*pair) for pair in itertools.combinations(arms, 2)],
    }


def _arm(tuning: Tuning, found: TunedArm) -> dict[str, Any]:
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


def _pair(control: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the differences of two arms with the given and with the tuned values."""
    # Unknown if a run with the given value did not complete.
    at_given = None
    if None not in (other["given_loss"], control["given_loss"]):
        at_given = other["given_loss"] - control["given_loss"]
    at_tuned = other["tuned_loss"] - control["tuned_loss"]
    return {
        "arm": other["name"],
        "control": control["name"],
        "at_given": at_given,
        "at_tuned": at_tuned,
        "only_tuning": None if at_given is None else at_given - at_tuned,
    }


def words_of_arms(tuning: Mapping[str, Any]) -> list[str]:
    """Returns a line for each arm, from `tuning` of comparison.json."""
    return [
        f"{arm['name']}: {tuning['option']}={arm['tuned']:g}, loss "
        f"{arm['tuned_loss']:.4f} after {tuning['compared_steps']:,} steps; "
        f"{_given(arm['given'], tuning)} {_shown(arm['given_loss'], '.4f')}"
        + ("" if arm["best"] == arm["tuned"] else f"; {arm['best']:g} is hardly better")
        for arm in tuning["arms"]
    ]


def words_of_differences(tuning: Mapping[str, Any]) -> list[str]:
    """Returns a line for each pair of arms: how much of their difference was tuning."""
    return [
        f"loss of {pair['arm']} minus that of {pair['control']} after "
        f"{tuning['compared_steps']:,} steps: {_shown(pair['at_given'], '+.4f')} as "
        f"given, {_shown(pair['at_tuned'], '+.4f')} tuned; "
        f"{_shown(pair['only_tuning'], '+.4f')} was only tuning (one run each, no "
        "verdict)"
        for pair in tuning["differences"]
    ]


def _given(value: float | None, tuning: Mapping[str, Any]) -> str:
    if value is None:
        return f"without {tuning['option']}"
    return f"with {as_argument(value)} as given"


def _shown(loss: float | None, form: str) -> str:
    # Adding zero makes -0.0000 of a tiny negative number positive.
    return "unknown" if loss is None else format(round(loss, 4) + 0.0, form)
