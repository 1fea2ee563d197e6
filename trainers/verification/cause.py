"""Why a strategy differs: what its recording tells, then what tests tell."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from trainers.config import Config
from trainers.execution import Executed
from trainers.verification.evidence import conclusive, remarks, where_it_begins
from trainers.verification.features import (
    Feature,
    features_in_use,
    rounding,
    switched_off,
)
from trainers.verification.judgement import Judgement, Verdict, judge

Run = Callable[[str, Config], Executed]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Test:
    """Both runs again, for a few steps, without something.

    Attributes:
      without: what was switched off.
      outcome: identical, equivalent, different, or failed.
    """

    without: str
    outcome: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """Of a difference.

    Attributes:
      likely: in a sentence.
      remarks: what the recordings point at.
      tests: what was tried.
    """

    likely: str
    remarks: Sequence[str]
    tests: Sequence[Test]


def find_cause(
    name: str, subject: Executed, reference: Executed, judgement: Judgement, run: Run
) -> Cause:
    """Names what makes a strategy differ from `one_device`.

    What a recording shows without doubt is not tested. Otherwise both are run again,
    up to the step after the first that differs, without one thing at a time that is in
    use; if nothing alone removes the difference, without all of them, and with more
    digits.

    Args:
      name: of the strategy, for the names of runs.
      subject: its run.
      reference: that of `one_device`.
      judgement: of the two, which is that they differ.
      run: runs a configuration under a name.
    """
    known = conclusive(subject, reference, judgement)
    if known is not None:
        return Cause(likely=known, remarks=(), tests=())
    passing = judgement.first_passing
    num_steps = reference.recording.num_steps()
    if passing is not None:
        num_steps = min(passing.step + 1, num_steps)
    features = features_in_use(
        subject.config,
        reference.recording.read(1),
        [step.examples_expected for step in judgement.steps],
        subject.num_replicas,
    )
    tests: list[Test] = []

    def differs_without(features: Sequence[Feature]) -> bool:
        outcome = _outcome_without(features, name, subject, reference, num_steps, run)
        without = " and ".join(feature.name for feature in features)
        tests.append(Test(without=without, outcome=outcome.value))
        return outcome not in (Verdict.IDENTICAL, Verdict.EQUIVALENT)

    likely = _tested(features, rounding(subject.config), differs_without)
    if likely is None:
        tried = ", ".join(test.without for test in tests)
        stays = f" (it stays without {tried})" if tried else ""
        likely = where_it_begins(judgement) + stays
    return Cause(
        likely=likely, remarks=remarks(subject, reference, judgement), tests=tests
    )


def _tested(
    features: Sequence[Feature],
    more_digits: Feature | None,
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
    if more_digits is not None and not differs_without([more_digits]):
        return f"{more_digits.name}: {more_digits.explanation}"
    return None


def _outcome_without(
    features: Sequence[Feature],
    name: str,
    subject: Executed,
    reference: Executed,
    num_steps: int,
    run: Run,
) -> Verdict:
    """Of the same comparison without some features."""
    without = "-".join(feature.folder for feature in features)
    runs = []
    for arm, recorded in ((name, subject), (f"one_device-for-{name}", reference)):
        config = switched_off(recorded.config, features, num_steps)
        runs.append(run(f"{arm}-without-{without}", config))
    if not all(recorded.run.is_completed for recorded in runs):
        return Verdict.FAILED
    return judge(*runs).verdict
