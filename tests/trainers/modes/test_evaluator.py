"""The evaluator of a run that is over; `tests/cluster` has it beside other tasks."""

import pathlib
from types import SimpleNamespace
from typing import Any

import pytest

from strategies.cluster.rendezvous import hold_port
from strategies.cluster.spec import EVALUATOR, Cluster
from strategies.common.console import Console
from strategies.common.errors import UsageError
from strategies.launcher.launch_config import local_cluster
from tests.event_files import read_events
from trainers.cli import flags
from trainers.main import main
from trainers.modes import evaluator


def test_an_evaluator_that_starts_again_evaluates_no_checkpoint_twice(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It also ends with the run's exit code if the chief does not know of it.

    The second one is started after the end of the run, and finds no chief. The run has
    statistics that the single device of an evaluation has not.
    """
    words = ["main", "--model=mlp", "--hidden_units=4", "--train_steps=4"]
    words += ["--checkpoint_every_steps=2", f"--run_dir={tmp_path / 'run'}"]
    words += ["--strategy=mirrored", "--set=report.replica_statistics=true"]
    assert main(words) == 0
    # The chief's address refuses connections.
    config = flags.parse(words).replace(startup_timeout_seconds=0.1)
    monkeypatch.setattr(evaluator, "_SECONDS_UNTIL_LOST", 0.0)
    addresses = {"worker": ("localhost:1",), **local_cluster({EVALUATOR: 1})}
    cluster = Cluster(job=EVALUATOR, index=0, addresses=addresses)
    capsys.readouterr()
    printed = []
    for was_there in (True, False):
        with monkeypatch.context() as patch:
            if was_there:
                patch.setattr(evaluator, "wait_for_tasks", lambda *_: None)
            assert evaluator.evaluator(config, cluster, Console()) == 0
        printed.append(capsys.readouterr().out.count("eval  | step"))
    assert printed == [2, 0]
    events = tmp_path / "run" / "tb" / EVALUATOR
    assert set(read_events(events).scalars("loss")) == {2, 4}
    assert len(list(events.iterdir())) == 1
    assert main(["main", "--mode=evaluate", f"--run_dir={tmp_path / 'run'}"]) == 0
    assert capsys.readouterr().out.startswith("eval  | step 4 | ")


def test_a_step_is_evaluated_again_after_a_rollback_has_removed_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evaluated: list[int] = []

    def report(self: Any, step: int, _: Any) -> None:
        evaluated.append(step)

    monkeypatch.setattr(evaluator._Evaluator, "_report", report)
    subject: Any = object.__new__(evaluator._Evaluator)
    subject._done = set()
    subject._parts = SimpleNamespace(evaluation=SimpleNamespace(run=lambda: None))
    signals: Any = SimpleNamespace(requested=False)
    looks = iter([[2], [2, 4], [2, 4], [2], [2, 4]])
    subject._checkpoints = SimpleNamespace(
        steps=lambda: next(looks), restore=lambda step: {}
    )
    for _ in range(5):
        subject.evaluate_new(signals)
    assert evaluated == [2, 4, 4]


def test_a_second_evaluator_at_the_address_is_refused(tmp_path: pathlib.Path) -> None:
    addresses = {"worker": ("localhost:1",), **local_cluster({EVALUATOR: 1})}
    cluster = Cluster(job=EVALUATOR, index=0, addresses=addresses)
    config = flags.parse(["main", "--model=mlp", f"--run_dir={tmp_path / 'run'}"])
    with (
        hold_port(cluster),
        pytest.raises(UsageError, match=f"address {cluster.address} of evaluator-0"),
    ):
        evaluator.evaluator(config, cluster, Console())
