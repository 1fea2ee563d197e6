"""--mode=compare with real runs: interrupted, continued, ended, looked at."""

import json
import pathlib
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import psutil
import pytest

from strategies.processes.forked_process import Process
from tests import processes
from tests.processes import ROOT
from tests.trainers.experiments.interruption import (
    ContinuedComparison,
    children_of,
    interrupted_and_continued,
    results_in,
)

pytestmark = pytest.mark.slow

SMALL = (
    "--model=mlp",
    "--hidden_units=8",
    "--train_steps=20",
    "--summary_every_steps=5",
    "--eval_every_steps=10",
    "--set=report.histogram_every_steps=none",
    "--checkpoint_every_steps=none",
    "--jit_compile=off",
)
COMPARE = (
    "--mode=compare",
    "--strategies=one_device,tower",
    "--num_replicas=2",
    "--seeds=2",
    "--set=comparison.target_accuracy=0.05",
    "--run_dir=comparison",
    *SMALL,
)


RUNS = "runs/*/*/measured.json"


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> ContinuedComparison:
    """Interrupted in its second run, then started again."""
    here = tmp_path_factory.mktemp("here")

    def runs_its_second(process: Process) -> bool:
        results = results_in(here / "comparison", RUNS)
        return bool(results and children_of(process))

    return interrupted_and_continued(here, COMPARE, RUNS, runs_its_second)


def conclusion_of(folder: pathlib.Path) -> dict[str, Any]:
    conclusion = json.loads((folder / "comparison.json").read_text("utf-8"))
    schema = json.loads((ROOT / "docs/comparison.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(schema).validate(conclusion)
    return conclusion


@pytest.mark.exhaustive
def test_an_interruption_ends_the_run_at_hand_and_says_how_to_go_on(
    comparison: ContinuedComparison,
) -> None:
    assert comparison.interrupted.returncode == 130
    (line,) = comparison.interrupted.stderr.splitlines()
    assert line.endswith("the same flags with --run_dir=comparison continue it.")


def test_a_finished_run_is_not_run_again(comparison: ContinuedComparison) -> None:
    assert comparison.continued.returncode == 0, comparison.continued.stderr
    after = results_in(comparison.folder, RUNS)
    assert comparison.kept
    assert {path: after[path] for path in comparison.kept} == comparison.kept
    assert len(after) == 4
    ran = re.findall(r"^run .*seed \d", comparison.continued.stdout, re.M)
    assert len(ran) == 4 - len(comparison.kept)


def test_a_finished_comparison_only_reports_again(
    comparison: ContinuedComparison,
) -> None:
    logs = {p: p.stat().st_mtime_ns for p in comparison.folder.glob("logs/*")}
    (comparison.folder / "report.html").unlink()
    done = processes.run(*COMPARE, folder=comparison.folder.parent)
    assert done.returncode == 0, done.stderr
    assert {p: p.stat().st_mtime_ns for p in logs} == logs
    assert (comparison.folder / "report.html").exists()


def test_output_that_is_piped_has_no_control_codes_and_fits_80_columns(
    comparison: ContinuedComparison,
) -> None:
    printed = comparison.continued.stdout
    assert all(c.isprintable() or c == "\n" for c in printed)
    table = [line for line in printed.splitlines() if re.match(r"(arm|tower) ", line)]
    assert len(table) == 2
    assert max(map(len, table)) <= 80
    # As it can be pasted in this environment, perhaps without the PATH.
    (program,) = re.findall(r"^view +(\S+) --logdir=", printed, re.M)
    assert program == str(pathlib.Path(sys.executable).with_name("tensorboard"))


def test_everything_is_measured_and_concluded(comparison: ContinuedComparison) -> None:
    conclusion = conclusion_of(comparison.folder)
    assert conclusion["control"] == "one_device"
    assert conclusion["seeds"] == [0, 1]
    for arm in conclusion["arms"]:
        assert arm["num_completed"] == 2
        missing = {name for name, mean in arm["means"].items() if mean is None}
        assert missing <= {"mean_staleness", "loopback_mib"}
        # All of TensorFlow, and not all memory of this machine.
        assert 200 < arm["means"]["peak_memory_mib"] < 4000
    found = {c["metric"]: c for c in conclusion["comparisons"]}
    # The same training: what they learned is the same to the last example.
    assert (found["eval_accuracy"]["estimate"], found["eval_loss"]["num_pairs"]) == (
        *(0.0, 2),
    )
    assert found["examples_per_second"]["verdict"]["kind"] == "too_few_seeds"


def test_runs_are_ordinary_runs_with_flags_of_their_own(
    comparison: ContinuedComparison,
) -> None:
    config = json.loads(
        (comparison.folder / "runs/tower/seed-1/config.json").read_text("utf-8")
    )
    assert config["run"]["seed"] == 1
    assert config["strategy"]["strategy"] == "tower"
    assert config["strategy"]["num_replicas"] == 2
    assert "comparison" not in config


def test_another_comparison_in_the_same_folder_is_refused(
    comparison: ContinuedComparison,
) -> None:
    before = processes.contents(comparison.folder)
    done = processes.run(*COMPARE, "--train_steps=21", folder=comparison.folder.parent)
    assert done.returncode == 2
    assert "--train_steps=21 of one_device (was 20)" in done.stderr
    assert processes.contents(comparison.folder) == before


def test_a_killed_comparison_leaves_no_process_and_nothing_half_done(
    tmp_path: pathlib.Path,
) -> None:
    with processes.started(*COMPARE, folder=tmp_path) as process:
        processes.wait_until(lambda: bool(children_of(process)), "a run", process)
        children = children_of(process)
        process.kill()
        process.wait()
    gone, alive = psutil.wait_procs(children, timeout=processes.PATIENCE_SECONDS)
    assert (len(gone), alive) == (len(children), [])
    assert not (tmp_path / "comparison" / "comparison.json").exists()


@pytest.mark.exhaustive
def test_arms_that_diverge_crash_or_are_refused_are_reported_beside_the_others(
    tmp_path: pathlib.Path,
) -> None:
    flags = (
        "--mode=compare",
        "--arm=fine: --set=length.step_delay_milliseconds=20",
        "--arm=wild: --optimizer=sgd --learning_rate=1e30",
        "--arm=refused: --strategy=mirrored --set=strategy.cross_device_reduction=nccl",
        "--arm=killed: --steps_per_loop=1 --set=length.step_delay_milliseconds=9999",
        "--seeds=1",
        "--run_dir=comparison",
        *SMALL,
    )
    path = tmp_path / "comparison"
    with processes.started(*flags, folder=tmp_path) as process:
        for folder in ("warm_up/killed", "runs/killed/seed-0"):
            metrics = path / folder / "metrics.jsonl"
            processes.wait_until(metrics.exists, folder, process)
            for child in children_of(process):
                child.kill()
        done = processes.end_of(process)
    assert done.returncode == 1
    conclusion = conclusion_of(path)
    runs = {arm["name"]: arm["runs"][0] for arm in conclusion["arms"]}
    assert {name: run["status"] for name, run in runs.items()} == {
        "fine": "completed",
        "wild": "diverged",
        "refused": "failed",
        "killed": "failed",
    }
    # Sleeping may take longer, never less.
    assert runs["fine"]["figures"]["step_milliseconds_p50"] >= 20
    assert "nccl" in runs["refused"]["reason"]
    assert "it was ended by SIGKILL" in runs["killed"]["reason"]
    assert "training has diverged" in runs["wild"]["reason"]
    assert len(conclusion["remarks"]) >= 3


# In a browser


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    """Yields a page of a real headless Chromium."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        # Its sandbox needs privileges that containers often lack; all it opens here
        # was made by this test.
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"]
        )
        yield browser.new_page(viewport={"width": 1400, "height": 1000})
        browser.close()


@pytest.fixture(scope="module")
def tensorboard(comparison: ContinuedComparison) -> Iterator[str]:
    """Yields the address of a TensorBoard, started as the report suggests."""
    program, *arguments = shlex.split(conclusion_of(comparison.folder)["tensorboard"])
    assert program == "tensorboard"
    words = [sys.executable, "-m", "tensorboard.main", *arguments, "--port=0"]
    with processes.start_words(words, comparison.folder.parent) as process:
        try:
            lines = iter(process.stderr or ())
            yield next(
                found[0] for line in lines if (found := re.search(r"http://\S+", line))
            )
        finally:
            process.kill()


def appears(page: Any, holds: Callable[[], bool], what: str) -> None:
    """Waits for what a page fills in by itself."""
    for _ in range(300):
        if holds():
            return
        page.wait_for_timeout(200)
    raise AssertionError(f"{what} never appeared: {page.locator('body').inner_text()}")


def test_tensorboard_listens_on_this_machine_only(tensorboard: str) -> None:
    port = int(re.findall(r":(\d+)", tensorboard)[-1])
    listening = {
        connection.laddr.ip
        for connection in psutil.net_connections("tcp")
        if connection.status == "LISTEN" and connection.laddr.port == port
    }
    assert listening
    assert listening <= {"127.0.0.1", "::1"}


def test_the_report_is_readable_in_a_browser(
    comparison: ContinuedComparison, page: Any
) -> None:
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("requestfailed", lambda request: problems.append(request.url))
    page.goto((comparison.folder / "report.html").as_uri())
    verdict = page.locator("#verdicts li").first
    assert verdict.is_visible()
    assert verdict.inner_text().startswith("tower against one_device: ")
    assert "too few seeds to conclude: 2 in common" in verdict.inner_text()
    assert "completed fewer than 3" in page.locator("#remarks").inner_text()
    # Speed, curves, step times, where the time went, memory; nothing is stale here.
    pictures = page.locator(".charts svg")
    assert pictures.count() == 5
    for index in range(5):
        box = pictures.nth(index).bounding_box()
        assert box["width"] > 300
        assert box["height"] > 50
    for words in ("milliseconds a step", "seconds of a run", "train_loss", "MiB"):
        assert page.locator("svg").get_by_text(words).first.is_visible(), words
    assert "--mode=compare" in page.locator("#command").inner_text()
    assert page.locator("#runs tr").count() == 1 + 4
    assert problems == []


def test_tensorboard_shows_the_curves_of_all_arms_in_one_chart(
    comparison: ContinuedComparison, page: Any, tensorboard: str
) -> None:
    page.goto(f"{tensorboard}?tagFilter=%5Eloss%24#timeseries")
    runs = [
        f"{arm}/seed-{seed}/tb/train"
        for arm in ("one_device", "tower")
        for seed in (0, 1)
    ]
    card = page.locator("scalar-card").first

    def forward_output() -> bool:
        words = card.inner_text().split() if card.count() else []
        return "loss" in words and set(runs) <= set(words)

    appears(
        page,
        forward_output,
        "the runs in the chart of the loss",
    )
    assert card.locator("svg, canvas").first.is_visible()


def test_tensorboard_has_a_row_of_hyperparameters_for_every_run(
    page: Any, tensorboard: str
) -> None:
    page.goto("about:blank")
    page.goto(f"{tensorboard}#hparams")
    cells = page.locator("tf-hparams-table-view vaadin-grid-cell-content")

    def trials() -> set[str]:
        return {text for text in cells.all_inner_texts() if "/seed-" in text}

    wanted = {f"{a}/seed-{s}" for a in ("one_device", "tower") for s in (0, 1)}
    appears(page, lambda: trials() == wanted, "a row for every run")
    assert trials() == wanted
