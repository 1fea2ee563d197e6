"""Explanations through the real entry point, with planted causes."""

import json
import pathlib
import shlex
import shutil
import subprocess
from typing import Any

import jsonschema
import pytest

from tests import processes
from tests.markers import further
from tests.trainers.experiments.explain.planted import HEALTHY, PLANTS, Plant
from trainers.cli.flags import parse
from trainers.experiments.explain.causes import LIMITS

SCHEMA = json.loads((processes.ROOT / "docs/explain.schema.json").read_text("utf-8"))
# One of ten, which needs a cluster and says which task it is.
IN_EVERY_TEST = ("slow_input",)
NUM_REPETITIONS = 10
# The goal is that none of 20 healthy runs names a cause; there are ten strategies.
NUM_HEALTHY = 2
# If other programs keep more cores busy, that is a cause that nobody planted.
_MOST_BUSY_CORES = LIMITS["other_busy_cores"]


def explained(
    folder: pathlib.Path, plant: Plant
) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    """Runs the command of a plant."""
    for tool in plant.before[:1]:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is missing")
    words = processes.command("--mode=explain", *plant.flags, f"--run_dir={folder}")
    with plant.beside():
        done = processes.run_words([*plant.before, *words])
    assert done.returncode == 0, done.stderr[-2000:]
    content = json.loads((folder / "explain.json").read_text("utf-8"))
    # All flags of the plant, and with them the strategy.
    again = parse(["", *shlex.split(content["command"])[3:]])
    assert again == parse(["", "--mode=explain", *plant.flags])
    jsonschema.validate(content, SCHEMA)
    for replica in content["replicas"]:
        # More than rounding, and less than a phase that is missing.
        assert replica["accounted_share"] == pytest.approx(1, abs=0.05)
    return content, done


def causes_of(folder: pathlib.Path, content: Any, planted: str = "") -> list[Any]:
    """Returns the causes, without one of other programs of this machine."""
    (measured,) = (folder / "runs").glob("*/measured.json")
    is_quiet = json.loads(measured.read_text())["other_busy_cores"] < _MOST_BUSY_CORES
    return [
        cause
        for cause in content["causes"]
        if is_quiet or cause["name"] != "crowded_cores" or planted == "crowded_cores"
    ]


def check_named(folder: pathlib.Path, plant: Plant) -> None:
    content, _ = explained(folder, plant)
    first, *_ = causes_of(folder, content, plant.cause)
    assert first["name"] == plant.cause
    assert plant.named in first["words"]


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize(
    "plant", [p for p in PLANTS if p.cause in IN_EVERY_TEST], ids=lambda p: p.cause
)
def test_a_planted_cause_is_named(plant: Plant, tmp_path: pathlib.Path) -> None:
    check_named(tmp_path / "explained", plant)


@pytest.mark.exhaustive
@pytest.mark.cluster
@pytest.mark.parametrize("repetition", range(NUM_REPETITIONS))
@pytest.mark.parametrize("plant", PLANTS, ids=lambda p: p.cause)
def test_each_planted_cause_is_named_each_time(
    plant: Plant, repetition: int, tmp_path: pathlib.Path
) -> None:
    check_named(tmp_path / "explained", plant)


@pytest.mark.exhaustive
@pytest.mark.cluster
@pytest.mark.parametrize("repetition", range(NUM_HEALTHY))
@pytest.mark.parametrize("flags", HEALTHY, ids=" ".join)
def test_a_healthy_run_has_no_cause(
    flags: tuple[str, ...], repetition: int, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "explained"
    content, _ = explained(folder, Plant("", flags))
    assert causes_of(folder, content) == []


_TWO_FITS = """
import keras, numpy as np

rows = np.random.default_rng(0).random((64, 3))
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
for rate in (0.1, 0.01):
    model.compile(keras.optimizers.SGD(rate), "mse")
    model.fit(rows, rows[:, 0], batch_size=32, epochs=50)
"""


Explained = tuple[pathlib.Path, dict[str, Any], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def of_a_program(tmp_path_factory: pytest.TempPathFactory) -> Explained:
    """Returns the folder, explain.json and the output of a program's explanation."""
    program = tmp_path_factory.mktemp("program") / "two_fits.py"
    program.write_text(_TWO_FITS)
    folder = program.parent / "explained"
    flags = (f"--script={program}", "--strategy=mirrored")
    return folder, *explained(folder, Plant("", flags))


@pytest.mark.slow
def test_a_program_is_explained_by_its_last_fit(of_a_program: Explained) -> None:
    _, content, done = of_a_program
    assert (content["model"], content["dataset"]) == (
        "two_fits.py",
        "of the program",
    )
    # Of the program's own batches, not the default of --global_batch_size.
    assert content["global_batch_size"] == 32
    assert "calls fit several times" in done.stdout
    assert "explain   mirrored, two_fits.py" in done.stdout


@pytest.mark.slow
def test_the_page_the_trace_and_the_line(of_a_program: Explained) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    folder, content, done = of_a_program
    lines = done.stdout.splitlines()
    (table,) = (n for n, line in enumerate(lines) if line.startswith("% of time"))
    assert all(len(line) <= 80 for line in lines[table : table + 3])
    verdicts = [line for line in lines if line.startswith(("cause ", "no cause "))]
    assert len(verdicts) == 1

    trace = json.loads((folder / "trace.json").read_text())
    bars = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {bar["name"] for bar in bars} >= {"forward and backward", "update"}
    assert all(bar["dur"] >= 0 and bar["ts"] >= 0 for bar in bars)

    if chromium is None:
        pytest.skip("no chromium: apt-get install chromium")
    with playwright.sync_playwright() as session:
        browser = session.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"]
        )
        for scheme, width in (("light", 1280), ("dark", 400)):
            page = browser.new_page(
                viewport={"width": width, "height": 900}, color_scheme=scheme
            )
            page.goto((folder / "explain.html").as_uri())
            # The page itself does not scroll sideways; its table may.
            overflow = page.evaluate(
                "document.documentElement.scrollWidth - innerWidth"
            )
            assert overflow <= 0
            # A page shows several spaces as one.
            verdict = page.locator("#verdict").inner_text()
            assert verdict == " ".join(verdicts[0].split())
            bars = page.locator(".bar").all()
            assert len(bars) == len(content["replicas"])
            assert all(bar.bounding_box()["width"] > 0.5 * width for bar in bars)
            # The text alternative: a screen reader has the table, not the bars.
            rows = page.get_by_role("rowheader").all_inner_texts()
            assert rows == [replica["name"] for replica in content["replicas"]]
            assert page.get_by_role("columnheader", name="forward and backward").count()
        browser.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        # Only the run finds out that there is no such archive.
        ("--dataset=cifar10", "--data_path=missing"),
        # Only its phases show that it was too short.
        further(("--model=mlp", "--train_steps=2")),
    ],
    ids=["by the run", "after the run"],
)
def test_a_run_that_is_refused_leaves_nothing(
    tmp_path: pathlib.Path, flags: tuple[str, ...]
) -> None:
    folder = tmp_path / "explained"
    done = processes.run(
        *("--mode=explain", "--strategy=mirrored", f"--run_dir={folder}", *flags),
        folder=tmp_path,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert not folder.exists()
