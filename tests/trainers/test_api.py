"""Training from Python and from a notebook."""

import contextlib
import io
import pathlib
import shutil
import signal
import sys
from unittest import mock

import keras
import nbformat
import pytest
from nbclient import NotebookClient
from rich.console import Console

import trainers
from strategies.common.errors import UsageError
from tests import processes
from trainers import api

# A compilation takes longer than these steps.
SMALL = trainers.configure(
    model="mlp", hidden_units=[8], train_steps=20, jit_compile="off"
)


def test_a_run_is_that_of_the_command_line(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    here = trainers.train(SMALL, run_dir=str(tmp_path / "here"))
    there = processes.train(
        tmp_path / "there",
        *("--model=mlp", "--hidden_units=8", "--train_steps=20", "--jit_compile=off"),
    )
    assert here.result["weights_sha256"] == there["weights_sha256"]
    assert here.status == "completed"
    assert here.eval_accuracy == there["final"]["eval_accuracy"]
    assert list(here.curve("train_loss")) == [20]
    assert "completed | step 20 | train_loss" in capfd.readouterr().out
    again = trainers.TrainingResult.read(tmp_path / "there")
    assert again.result == there


def test_a_result_shows_itself(tmp_path: pathlib.Path) -> None:
    result = trainers.TrainingResult(
        tmp_path / "<run>",
        {
            "status": "diverged",
            "strategy": "mirrored",
            "num_replicas": 2,
            "steps": 1_200,
            "final": {"train_loss": 0.5, "eval_loss": None, "eval_accuracy": 0.25},
            "examples_seen": 76_800,
            "throughput": {"examples_per_second": 1234.56},
            "weights_sha256": "0123456789abcdef",
        },
        [],
    )
    console = Console(record=True, width=80, file=io.StringIO())
    console.print(result)
    for shown in (console.export_text(), result._repr_html_()):
        assert "diverged, 1,200 steps" in shown
        assert "mirrored, 2 replicas" in shown
        assert "0.2500" in shown
        assert "1,234.6 examples/s, 51.84 ms/step" in shown
        assert "eval_loss" not in shown
    assert "&lt;run&gt;" in result._repr_html_()


def test_what_is_wrong_is_an_exception(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'train_steps'"):
        trainers.train(SMALL, train_step=3)
    with pytest.raises(UsageError, match="mode='doctor' is not training"):
        trainers.train(SMALL, mode="doctor")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    with pytest.raises(UsageError, match="mode='explain' is not training"):
        trainers.fit(model, strategy="one_device", settings={"mode": "explain"})
    with pytest.raises(UsageError, match="settings has a script"):
        trainers.fit(model, settings={"script": "a.py"})
    folder = tmp_path / "run"
    (folder / "other").mkdir(parents=True)
    with pytest.raises(UsageError, match="holds files that are not a run"):
        trainers.train(SMALL, run_dir=str(folder))
    with pytest.raises(UsageError, match="is not the folder of a run"):
        trainers.TrainingResult.read(folder)


def test_an_interrupt_ends_the_run_after_a_checkpoint(tmp_path: pathlib.Path) -> None:
    code = (
        "import sys, trainers\n"
        "result = trainers.train(model='mlp', train_steps=10**6, run_dir='run',\n"
        "    step_delay_milliseconds=5, summary_every_steps=5, jit_compile='off')\n"
        "print('status', result.status, result.result['steps'])\n"
    )
    begin = [sys.executable, "-c", code]
    with processes.started(folder=tmp_path, begin=begin) as process:
        processes.wait_until(
            lambda: processes.last_step_of(tmp_path / "run") > 0, "its metrics", process
        )
        process.send_signal(signal.SIGINT)
        ended = processes.end_of(process)
    words = ended.stdout.splitlines()[-1].split()
    assert words[:2] == ["status", "preempted"]
    assert int(words[2]) > 0
    assert (tmp_path / "run" / "checkpoints").is_dir()


class _Interrupted(io.StringIO):
    """Output that interrupts whoever writes the first line."""

    interrupts = 1

    def write(self, text: str) -> int:
        if self.interrupts:
            self.interrupts = 0
            raise KeyboardInterrupt
        return super().write(text)


def test_an_interrupt_while_a_line_is_printed_goes_to_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends: list[BaseException | int] = [KeyboardInterrupt(), 130]
    process = mock.Mock(stdout=io.StringIO("one\nerror: two\n"))
    process.wait.side_effect = ends
    monkeypatch.setattr(
        api, "started", lambda *_: contextlib.nullcontext(enter_result=process)
    )
    output = _Interrupted()
    monkeypatch.setattr(sys, "stdout", output)
    assert api._run([]) == (130, "two")
    assert process.send_signal.call_args_list == [mock.call(signal.SIGINT)] * 2
    assert output.getvalue() == "error: two\n"


def test_a_run_that_ends_before_it_begins_has_failed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_run", lambda _: (130, ""))
    with pytest.raises(RuntimeError, match="exit code 130"):
        trainers.train(SMALL, run_dir=str(tmp_path / "run"))
    # The result of an earlier process in this folder is none of this run.
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text('{"status": "completed"}')
    with pytest.raises(RuntimeError, match="exit code 130"):
        trainers.train(SMALL, run_dir=str(tmp_path / "run"), resume="auto")


@pytest.mark.exhaustive
def test_the_notebook_runs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs it in a folder beside the project, as examples/ is."""
    for package in ("strategies", "models", "trainers"):
        (tmp_path / package).symlink_to(processes.ROOT / package)
    folder = tmp_path / "examples"
    folder.mkdir()
    source = processes.ROOT / "examples" / "from_python.ipynb"
    shutil.copy(source, folder)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    notebook = nbformat.read(folder / source.name, as_version=4)
    client = NotebookClient(
        notebook, timeout=240, resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    outputs = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type != "stream"
    ]
    shown, same, picture, own = outputs
    assert "<td>completed, 300 steps</td>" in shown.data["text/html"]
    is_same, *accuracies = eval_of(same.data["text/plain"])
    assert is_same is True
    # Three of the 360 examples: one program reads the weights that the other wrote.
    assert accuracies[0] == pytest.approx(accuracies[1], abs=0.01)
    assert "image/png" in picture.data
    assert float(own.data["text/plain"]) > 0.8


def eval_of(text: str) -> tuple[bool, float, float]:
    first, *rest = text.strip("()\n ").replace("\n", "").split(",")
    return first.strip() == "True", float(rest[0]), float(rest[1])
