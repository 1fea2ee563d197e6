"""The report of a verification: a table, lines of text, and verify.json."""

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from strategies.common.text import table_lines
from trainers.experiments.arms import KERAS, Arm
from trainers.experiments.runner import Executed
from trainers.experiments.verify.diagnosis import Cause
from trainers.experiments.verify.differences import Difference
from trainers.experiments.verify.first_step import KerasFinding
from trainers.experiments.verify.tolerance import in_words, tolerance
from trainers.experiments.verify.verdict import Judgement, ToleranceViolation, Verdict

SCHEMA_VERSION = 1

_QUANTITIES = ("loss", "gradients", "weights")
_NOTHING = "-"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The result of verifying one strategy.

    Steps that cannot be compared have no judgement, and equal ones no cause.
    """

    arm: Arm
    recorded: Executed
    verdict: Verdict
    judgement: Judgement | None = None
    cause: Cause | None = None


def table(keras: KerasFinding | None, findings: Sequence[Finding]) -> list[str]:
    """Returns a row for each strategy, with its largest relative differences.

    The first row is Keras's first step; None where all are compared with Keras.
    """
    rows = [["strategy", "replicas", *_QUANTITIES, "verdict"]]
    if keras is not None:
        first = keras.largest()
        shown = (_shown(first.get(quantity)) for quantity in _QUANTITIES)
        rows.append([KERAS, _NOTHING, *shown, keras.verdict.value])
    for finding in findings:
        largest = finding.judgement.largest if finding.judgement else {}
        rows.append(
            [
                finding.arm.name,
                str(finding.recorded.run.result.get("num_replicas") or _NOTHING),
                *(_shown(largest.get(quantity)) for quantity in _QUANTITIES),
                finding.verdict.value,
            ]
        )
    return table_lines(rows)


def explanations(
    keras: KerasFinding | None, findings: Sequence[Finding]
) -> list[tuple[str, str]]:
    """Returns the remarks on each verdict, with the name of the strategy."""
    lines = [(KERAS, words) for words in keras.explanations()] if keras else []
    for finding in findings:
        lines += [(finding.arm.name, words) for words in _remarks(finding)]
    return lines


def _remarks(finding: Finding) -> Iterator[str]:
    if finding.judgement and (violation := finding.judgement.first_violation):
        yield _differs_first(finding, violation)
    if finding.judgement and (by_rounding := finding.judgement.by_rounding):
        yield (
            f"{by_rounding.in_words()}: {by_rounding.difference.relative:.1e} exceeds "
            f"the tolerance {by_rounding.tolerance:.1e} by rounding alone: the "
            "reference differs so from itself if its initial weights change in their "
            "last bit"
        )
    if finding.cause is not None:
        yield from finding.cause.remarks
        for test in finding.cause.tests:
            yield f"without {test.without}: {test.outcome}"
        yield f"likely cause: {finding.cause.likely}"
    if finding.verdict is Verdict.FAILED:
        yield f"failed: {finding.recorded.run.reason}"
    if finding.verdict is Verdict.NOT_COMPARABLE:
        yield _why_not_comparable(finding)


def _differs_first(finding: Finding, violation: ToleranceViolation) -> str:
    if violation.quantity != "steps":
        return (
            f"differs first at {violation.in_words()}: "
            f"{violation.difference.relative:.1e}, tolerance {violation.tolerance:.1e}"
        )
    last = violation.step - 1
    if finding.recorded.recording.num_steps() > last:
        return f"trains on after step {last}, with which the reference ends"
    return f"ends with step {last}, after which the reference trains on"


def content(
    keras: KerasFinding | None,
    findings: Sequence[Finding],
    reference: Executed,
    command: str,
) -> dict[str, Any]:
    """Returns the content of verify.json, described by docs/verify.schema.json."""
    config = reference.config
    dtype, examples = config.model.dtype, reference.recording.examples()
    return {
        "schema_version": SCHEMA_VERSION,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": command,
        "reference": reference.run.arm,
        "steps": len(examples),
        "tolerance": {
            "first_step": tolerance(dtype, examples[:1]),
            # The tolerance grows with the steps.
            "last_step": tolerance(dtype, examples),
            "dtype": dtype,
            "examples_summed": max(examples),
            "explanation": in_words(dtype, examples),
        },
        "initial_weights_sha256": reference.run.result.get("initial_weights_sha256"),
        "config": config.to_dict(),
        "versions": reference.run.result.get("versions"),
        "keras": None if keras is None else keras.entry(),
        "strategies": [_entry(finding) for finding in findings],
    }


def _entry(finding: Finding) -> dict[str, Any]:
    strategy = finding.arm.config.strategy
    result = finding.recorded.run.result
    judgement, cause = finding.judgement, finding.cause
    return {
        "name": finding.arm.name,
        "strategy": strategy.strategy,
        "update": strategy.update,
        "synchronous": strategy.is_synchronous,
        "num_replicas": result.get("num_replicas"),
        "verdict": finding.verdict.value,
        "largest_relative_difference": None
        if judgement is None
        else {n: dataclasses.asdict(found) for n, found in judgement.largest.items()},
        "first_beyond_tolerance": _violation(
            judgement.first_violation if judgement else None
        ),
        "explained_by_rounding": _violation(
            judgement.by_rounding if judgement else None
        ),
        "cause": None if cause is None else dataclasses.asdict(cause),
        "staleness": result.get("staleness"),
        "reason": finding.recorded.run.reason or None,
        "run": str(finding.recorded.run.path),
    }


def _violation(violation: ToleranceViolation | None) -> dict[str, Any] | None:
    if violation is None:
        return None
    return {
        "step": violation.step,
        "quantity": violation.quantity,
        **dataclasses.asdict(violation.difference),
        "tolerance": violation.tolerance,
    }


def _shown(difference: Difference | None) -> str:
    if difference is None:
        return _NOTHING
    # "0" without digits marks values that are equal to the last bit.
    return f"{difference.relative:.1e}" if difference.relative else "0"


def _why_not_comparable(finding: Finding) -> str:
    config = finding.arm.config
    strategy = config.strategy
    # The most specific reason first; several can hold for one strategy.
    if strategy.gradient_reduction == "sum":
        why = (
            "--set=strategy.gradient_reduction=sum takes the sum of the replicas' "
            "gradients for their mean"
        )
    elif strategy.averaged == "parameters":
        why = (
            "replicas change copies of the weights of their own between two averages "
            f"(--sync_every_steps={strategy.steps_between_averages})"
        )
    elif strategy.compression is not None:
        why = (
            f"--gradient_compression={strategy.gradient_compression} sums "
            "approximations of gradients"
        )
    elif not strategy.is_synchronous:
        why = _how_stale(finding.recorded.run.result.get("staleness") or {})
    elif config.data.sharding == "file":
        why = (
            "--sharding=file gives every process files of its own, so that its global "
            "batches hold other examples"
        )
    elif strategy.backup_workers:
        why = f"--backup_workers={strategy.backup_workers} leaves gradients out"
    else:
        why = f"--strategy={strategy.strategy} declares matches_one_device=False"
    return f"{why}: it is another training, by intention"


def _how_stale(staleness: Mapping[str, Any]) -> str:
    figures = ", ".join(
        f"{name} {staleness[name]:g}"
        for name in ("mean", "p95", "max")
        if staleness.get(name) is not None
    )
    return (
        "workers or towers do not wait for each other, and weights change between "
        "being read and getting their gradient (updates in between: "
        f"{figures or 'not measured'})"
    )
