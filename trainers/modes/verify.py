"""Check that strategies and one device train as Keras does (`--mode=verify`)."""

from collections.abc import Sequence

from strategies.cluster.spec import Cluster
from strategies.common.console import Console
from strategies.common.errors import ExitCode
from strategies.common.files import write_json
from trainers.config.config import Config
from trainers.experiments.arms import Arm
from trainers.experiments.command import command_again
from trainers.experiments.run_record import errors_after_training
from trainers.experiments.runner import Executed, Runner, with_runs
from trainers.experiments.verify.arms import is_comparable, reference_of, subjects_of
from trainers.experiments.verify.diagnosis import find_cause
from trainers.experiments.verify.first_step import KerasFinding, judge_keras
from trainers.experiments.verify.report import Finding, content, explanations, table
from trainers.experiments.verify.rounding import judge_with_rounding
from trainers.experiments.verify.verdict import Verdict


def verify(config: Config, cluster: Cluster, console: Console) -> ExitCode:
    """Runs every strategy and one device, and compares them step by step.

    Returns:
      DONE if Keras and every strategy that can be compared are identical or
      equivalent, DIFFERENT if one is not, BUG if one failed, and the exit code of the
      run on one device if that failed.

    Raises:
      UsageError: This process or the run on one device rejects the settings.
    """
    del cluster
    reference_arm, arms = reference_of(config), subjects_of(config)
    return with_runs(
        config,
        console,
        ", ".join(arm.name for arm in arms),
        lambda runner: _verify(config, reference_arm, arms, runner),
    )


def _verify(
    config: Config, reference_arm: Arm, arms: Sequence[Arm], runner: Runner
) -> ExitCode:
    folder, console = runner.folder, runner.console
    runs = [(reference_arm.name, reference_arm.config)]
    for arm in arms:
        # One device as a strategy is the reference once more, in a folder beside it.
        again = "-again" if arm.name == reference_arm.name else ""
        runs.append((f"{arm.name}{again}", arm.config))
    reference, *recorded = runner.run_all(runs)
    if not reference.run.has_trained:
        name = f"{reference.run.arm}, which all are compared with,"
        return runner.end_after(reference, name)
    is_keras = reference.config.model.keras_fit
    keras = None if is_keras else judge_keras(reference)
    findings = [
        _find(arm, run, reference, runner)
        for arm, run in zip(arms, recorded, strict=True)
    ]
    found = content(keras, findings, reference, command_again(config))
    write_json(folder.result, found)
    name = "Keras's own fit" if is_keras else reference.run.arm
    console.say(f"largest relative difference from {name} in {found['steps']} steps:")
    for line in table(keras, findings):
        console.say(line)
    console.item("tolerance", found["tolerance"]["explanation"])
    for words in errors_after_training([run.run for run in (reference, *recorded)]):
        console.item("note", words)
    for name, words in explanations(keras, findings):
        console.say(f"{name}: {words}")
    console.item("result", folder.result)
    return _exit_code(keras, findings)


def _find(arm: Arm, recorded: Executed, reference: Executed, runner: Runner) -> Finding:
    """Compares the run of a strategy with the reference and returns the finding."""
    # A diverged strategy can be compared: its steps up to the divergence are recorded.
    comparable = is_comparable(arm.config)
    has_steps = comparable and recorded.run.status == "diverged"
    if not recorded.run.has_trained and not has_steps:
        return Finding(arm=arm, recorded=recorded, verdict=Verdict.FAILED)
    if not comparable:
        return Finding(arm=arm, recorded=recorded, verdict=Verdict.NOT_COMPARABLE)
    judgement = judge_with_rounding(recorded, reference, runner.run_once)
    cause = None
    if judgement.verdict is Verdict.DIFFERENT:
        # Unless the recordings suffice, runs both again without one feature at a time.
        cause = find_cause(arm.name, recorded, reference, judgement, runner.run_once)
    return Finding(
        arm=arm,
        recorded=recorded,
        verdict=judgement.verdict,
        judgement=judgement,
        cause=cause,
    )


def _exit_code(keras: KerasFinding | None, findings: Sequence[Finding]) -> ExitCode:
    verdicts = {finding.verdict for finding in findings}
    if keras is not None:
        verdicts.add(keras.verdict)
    if Verdict.FAILED in verdicts:
        return ExitCode.BUG
    return ExitCode.DIFFERENT if Verdict.DIFFERENT in verdicts else ExitCode.DONE
