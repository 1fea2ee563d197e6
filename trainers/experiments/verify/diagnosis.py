"""The cause of a difference, from recordings and ablations."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from strategies.common.errors import ExitCode
from strategies.common.text import NUMBER_MATTERS
from trainers.experiments.runner import Executed
from trainers.experiments.verify.ablations import (
    BATCH_NORMALIZATION,
    Feature,
    features_in_use,
    more_digits,
    switched_off,
)
from trainers.experiments.verify.differences import norm_of_all
from trainers.experiments.verify.rounding import RunOnce, judge_with_rounding
from trainers.experiments.verify.tolerance import tolerance
from trainers.experiments.verify.verdict import Judgement, Verdict


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ablation:
    """Both runs repeated for a few steps without some features.

    Attributes:
      without: Features that were switched off.
      outcome: "identical", "equivalent", "different" or "failed".
    """

    without: str
    outcome: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """The likely cause of a difference, with hints from recordings and ablations."""

    likely: str
    remarks: Sequence[str]
    tests: Sequence[Ablation]


def find_cause(
    name: str,
    subject: Executed,
    reference: Executed,
    judgement: Judgement,
    run: RunOnce,
) -> Cause:
    """Names the likely cause of a difference between a strategy and `one_device`.

    A cause that the recordings prove is not tested. Otherwise both runs are repeated up
    to the step after the first that differs. Each repetition switches off one feature
    that is in use. If no single feature removes the difference, all features are
    switched off together, and at last the runs use more digits.
    """
    # An ablation costs two runs; a proven cause needs none.
    known = conclusive(subject, reference, judgement)
    if known is not None:
        return Cause(likely=known, remarks=(), tests=())
    violation = judgement.first_violation
    num_steps = reference.recording.num_steps()
    if violation is not None:
        # Later steps only add to the difference and cost time.
        num_steps = min(violation.step + 1, num_steps)
    features = features_in_use(
        subject.config,
        reference.recording.read(1),
        [step.examples_expected for step in judgement.steps],
        subject.num_replicas,
    )
    # Without the layers all agrees: random numbers are no reason for other statistics.
    if wrong := _statistics(subject, reference):
        features = [
            dataclasses.replace(feature, explanation=wrong)
            if feature == BATCH_NORMALIZATION
            else feature
            for feature in features
        ]
    tests: list[Ablation] = []

    def differs_without(features: Sequence[Feature]) -> bool:
        outcome = _outcome_without(features, name, subject, reference, num_steps, run)
        if outcome is None:
            return True
        without = " and ".join(feature.name for feature in features)
        tests.append(Ablation(without=without, outcome=outcome.value))
        return outcome not in (Verdict.IDENTICAL, Verdict.EQUIVALENT)

    likely = _tested(features, more_digits(subject.config), differs_without)
    if likely is None:
        tried = ", ".join(test.without for test in tests)
        stays = f" (it stays without {tried})" if tried else ""
        begins = where_it_begins(subject.num_replicas, judgement)
        warned = [w for w in _warnings(subject, reference) if NUMBER_MATTERS in w]
        likely = ("; ".join(warned) or begins) + stays
    found = remarks(subject, reference, judgement)
    # Such as on the memory: they may concern anything.
    found += [f"warns: {w}" for w in _warnings(subject, reference) if w not in likely]
    return Cause(likely=likely, remarks=found, tests=tests)


def _tested(
    features: Sequence[Feature],
    precision: Feature | None,
    differs_without: Callable[[Sequence[Feature]], bool],
) -> str | None:
    removing = [feature for feature in features if not differs_without([feature])]
    if removing:
        return "; ".join(
            f"the difference goes away without {feature.name}: {feature.explanation}"
            for feature in removing
        )
    if len(features) > 1 and not differs_without(features):
        names = " and ".join(feature.name for feature in features)
        explanations = "; ".join(f"{f.name}: {f.explanation}" for f in features)
        return f"the difference goes away only without {names} ({explanations})"
    if precision is not None and not differs_without([precision]):
        return f"{precision.name}: {precision.explanation}"
    return None


def _outcome_without(
    features: Sequence[Feature],
    name: str,
    subject: Executed,
    reference: Executed,
    num_steps: int,
    run: RunOnce,
) -> Verdict | None:
    """Returns the verdict of the same comparison without some features.

    It is None where they cannot be switched off: batches that a program has made have
    the sizes that they have.
    """
    without = "-".join(feature.folder for feature in features)
    runs = []
    for arm, recorded in (
        (name, subject),
        (f"{reference.run.arm}-for-{name}", reference),
    ):
        config = switched_off(recorded.config, features, num_steps)
        runs.append(run(f"{arm}-without-{without}", config))
    if not all(recorded.run.has_trained for recorded in runs):
        is_refused = any(recorded.exit_code == ExitCode.USAGE for recorded in runs)
        return None if is_refused else Verdict.FAILED
    return judge_with_rounding(runs[0], runs[1], run).verdict


# A factor explains a difference if it leaves less than this fraction of it. Gradients
# of half a batch leave about a half, even at their best factor.
_LEFT_UNEXPLAINED = 1e-3


def conclusive(
    subject: Executed, reference: Executed, judgement: Judgement
) -> str | None:
    """Returns a cause that the recordings prove, or None."""
    if not judgement.steps:
        return None
    return (
        _other_beginning(subject, reference, judgement)
        or _missing_examples(judgement)
        or _other_end(judgement)
        or _multiple(subject, reference, judgement)
        # Other random numbers change the loss, and statistics as well.
        or (_agrees_in_loss(subject, judgement) and _statistics(subject, reference))
        or None
    )


def _agrees_in_loss(subject: Executed, judgement: Judgement) -> bool:
    """Returns whether the loss of the first step agrees."""
    first = judgement.steps[0]
    accepted = tolerance(subject.config.model.dtype, [first.examples_expected])
    return first.differences["loss"][None] <= accepted


def remarks(subject: Executed, reference: Executed, judgement: Judgement) -> list[str]:
    """Returns hints at a cause, without proof."""
    violation = judgement.first_violation
    if violation is None or violation.step > len(judgement.steps):
        return []
    found = []
    examples = [step.examples_expected for step in judgement.steps[: violation.step]]
    uneven = [count % subject.num_replicas != 0 for count in examples]
    if _is_last_alone(uneven):
        found.append(
            f"step {violation.step} is the first whose {examples[-1]} examples do not "
            f"divide by {subject.num_replicas} replicas; all before it agree"
        )
    limit = subject.config.optimizer.clip_global_norm
    if limit is not None:
        norms = [
            norm_of_all(reference.recording.read(step + 1).gradients)
            for step in range(violation.step)
        ]
        if _is_last_alone([norm > limit for norm in norms]):
            found.append(
                f"step {violation.step} is the first in which clipping is in force; "
                "all before it agree"
            )
    return found


def _is_last_alone(flags: Sequence[bool]) -> bool:
    """Returns whether something holds of the last step, and of none before it."""
    # Otherwise it does not begin with the first difference.
    return len(flags) > 1 and flags[-1] and not any(flags[:-1])


def _warnings(subject: Executed, reference: Executed) -> list[str]:
    """Returns what a run warned about and the reference did not."""
    expected = reference.run.warnings
    return [each for each in subject.run.warnings if each not in expected]


def where_it_begins(num_replicas: int, judgement: Judgement) -> str:
    """Returns the part of a step in which a difference arises, if no cause is known."""
    violation = judgement.first_violation
    if violation is None:
        return "no step differs"
    begins = _BEGINS[violation.quantity]
    # A replica that is alone sums nothing, and compares whole batches.
    if num_replicas == 1 and violation.quantity == "loss":
        begins = _OTHER_INPUTS
    has_gradients = any("gradients" in step.differences for step in judgement.steps)
    if violation.quantity == "weights" and not has_gradients:
        begins = _OTHER_UPDATE
    return f"{begins}; first at {violation.in_words()}"


# Keyed by the first quantity that differs: all quantities computed before it agree.
_BEGINS = {
    "loss": "replicas compute another loss from the same weights, as they should where "
    "examples of a batch are compared with each other, where random numbers belong to "
    "no example, or where data are shuffled anew for every reader",
    "gradients": "the losses of replicas are summed rightly and their gradients are "
    "not: some are lost, weighted or changed on the way to the sum",
    "weights": "summed gradients agree, and what the update makes of them does not",
}

_OTHER_UPDATE = (
    "the losses agree, and what the weights become does not; Keras's fit records no "
    "gradients. A step of the model's own differs between shards and whole batches if "
    "it clips or changes gradients, moves weights by them, or compares examples"
)

_OTHER_INPUTS = (
    "one replica computes another loss from the same weights: it has other examples "
    "(of data that are shuffled anew for every reader, and read for validation too), "
    "other random numbers (in a loop), or computes the loss in another way"
)


def _other_beginning(
    subject: Executed, reference: Executed, judgement: Judgement
) -> str | None:
    """Returns a cause if the runs began with other weights or examples."""
    has_other_weights, has_other_examples = (
        subject.run.result.get(name) != reference.run.result.get(name)
        for name in ("initial_weights_sha256", "first_examples_sha256")
    )
    if has_other_weights and judgement.first_violation is not None:
        return (
            "the initial weights differ already, before any step: perhaps they are "
            "read from a file that an earlier run has written"
        )
    if has_other_examples:
        return (
            "the first examples differ already: the program draws other random numbers "
            "for its data in every run; give the generators of its data a seed"
        )
    return None


def _missing_examples(judgement: Judgement) -> str | None:
    for step in judgement.steps:
        if step.examples != step.examples_expected:
            what = "missing" if step.examples < step.examples_expected else "repeated"
            return (
                f"step {step.step} counted {step.examples} of {step.examples_expected} "
                f"examples: some replicas' rows are {what}"
            )
    return None


def _other_end(judgement: Judgement) -> str | None:
    violation = judgement.first_violation
    if violation is None or violation.quantity != "steps":
        return None
    return (
        "all steps that both have trained agree, and the program ends the training "
        "elsewhere: a callback decides by a value that is close to its limit, or that "
        "is not the same with several replicas"
    )


def _multiple(
    subject: Executed, reference: Executed, judgement: Judgement
) -> str | None:
    """Returns a cause if all gradients are one multiple of the expected gradients.

    Only the first gradients that differ are compared, and only if the weights before
    that step agreed.
    """
    violation = judgement.first_violation
    # A difference that begins elsewhere would change the gradients too.
    if violation is None or violation.quantity != "gradients":
        return None
    found = subject.recording.read(violation.step).gradients
    expected = reference.recording.read(violation.step).gradients
    factor = _factor(found, expected)
    if factor is None:
        return None
    replicas = subject.num_replicas
    words = f"gradients are {factor:.4g} times those of one_device"
    is_close = functools.partial(np.isclose, factor, rtol=_LEFT_UNEXPLAINED)
    if replicas > 1 and is_close(1 / replicas):
        words += f": averaged over {replicas} replicas once more than they should be"
    elif replicas > 1 and is_close(replicas):
        words += f": {replicas} replicas' gradients are summed once too often"
    return words


def _factor(
    found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
) -> float | None:
    """Returns the factor between all values of two recordings; None if not a factor."""
    if found.keys() != expected.keys() or not norm_of_all(expected):
        return None
    products = [np.sum(found[name] * expected[name]) for name in expected]
    # The factor of the least squares fit of `found` to `expected`.
    factor = float(sum(products)) / norm_of_all(expected) ** 2
    left = norm_of_all({n: found[n] - factor * expected[n] for n in expected})
    difference = norm_of_all({n: found[n] - expected[n] for n in expected})
    return factor if left <= _LEFT_UNEXPLAINED * difference else None


def _statistics(subject: Executed, reference: Executed) -> str | None:
    """Returns a cause if no moving statistic of the first step agrees.

    The statistics of the first normalization in a model depend only on initial weights
    and examples. Some of them have to agree, however replicas normalize.
    """
    found = subject.recording.read(1)
    expected = reference.recording.read(1)
    # Random layers before a normalization change its statistics.
    if expected.random_layers or not expected.layer_state:
        return None
    accepted = tolerance(subject.config.model.dtype, [expected.examples])
    moving = [name for name in expected.layer_state if "moving_" in name]
    if not moving or any(
        np.linalg.norm(found.layer_state[name] - expected.layer_state[name])
        <= accepted * np.linalg.norm(expected.layer_state[name])
        for name in moving
    ):
        return None
    return (
        f"the moving statistics of step 1 ({moving[0]} and all others) are not those "
        "of the global batch, as when only the first replica's are kept: layer state "
        "has to be summed over replicas like gradients"
    )
