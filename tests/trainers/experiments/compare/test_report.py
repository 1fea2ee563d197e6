"""The report of a comparison: its first lines, and its look in a browser."""

import itertools
import json
import pathlib
import re
import shutil
import subprocess
from typing import Any

import pytest

from tests.markers import chosen
from tests.processes import ROOT
from tests.trainers.experiments.compare.run_factory import make_arm
from trainers.main import main
from trainers.reporting.tracking.base import code_version

COMMIT = "0123456789abcdef" * 2 + "01234567"
HARDWARE = {"cpu": "Some CPU", "cpu_cores": 4, "memory_mib": 8192, "gpus": ["X", "X"]}
WIDTHS = (1280, 400)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns the folder of a comparison of arms that differ by noise, 5 runs each."""
    folder = tmp_path_factory.mktemp("comparison")
    one = make_arm(folder / "one", (1000.0, 1010.0, 990.0, 1005.0, 995.0))
    two = make_arm(
        folder / "two", (1100.0, 950.0, 1050.0, 900.0, 1010.0), strategy="tower"
    )
    for path in folder.glob("*/*/result.json"):
        result = json.loads(path.read_text("utf-8"))
        result["hardware"] = HARDWARE
        result["versions"]["commit"] = f"{COMMIT}+changes"
        result["final"]["eval_mean_absolute_error"] = 0.25
        arm, seed = path.parent.parent.name, int(path.parent.name.removeprefix("seed-"))
        result["final"]["eval_bias"] = 0.25 - 1e-7 * seed * (arm == "two")
        path.write_text(json.dumps(result), "utf-8")
    margin = "--set=comparison.speed_margin_percent=1"
    flags = (f"--runs={one},{two}", f"--run_dir={folder / 'out'}", margin)
    assert main(["trainers", "--mode=compare", *flags]) == 0
    return folder / "out"


def test_date_machine_and_commit_are_at_the_top(report: pathlib.Path) -> None:
    conclusion = json.loads((report / "comparison.json").read_text("utf-8"))
    assert conclusion["machines"] == ["Some CPU, 4 cores, 8 GiB, 2 x X"]
    assert conclusion["commits"] == [f"{COMMIT}+changes"]
    for name in ("report.html", "report.md"):
        page = (report / name).read_text("utf-8")
        top = page[: page.index("would need a difference of")]
        assert conclusion["created"][:10] in top
        assert "Some CPU, 4 cores" in top
        assert f"{COMMIT[:12]} with uncommitted changes" in top


def test_it_says_what_it_would_have_needed(report: pathlib.Path) -> None:
    markdown = (report / "report.md").read_text("utf-8")
    pattern = r"cannot tell: would need a difference of [\d.]+ % in speed"
    assert re.search(pattern, markdown)


def test_metrics_besides_loss_and_accuracy_are_compared(report: pathlib.Path) -> None:
    conclusion = json.loads((report / "comparison.json").read_text("utf-8"))
    (compared,) = [
        c
        for c in conclusion["comparisons"]
        if c["metric"] == "eval_mean_absolute_error"
    ]
    assert (compared["kind"], compared["num_pairs"]) == ("difference", 5)
    assert compared["estimate"] == 0
    assert "mean absolute error" in (report / "report.md").read_text("utf-8")


def test_a_tiny_difference_is_no_negative_zero(report: pathlib.Path) -> None:
    page = (report / "report.html").read_text("utf-8")
    cells = re.findall(r"<td>(.*?)</td>", page[page.index('id="intervals"') :])
    assert "-2.0e-07" in cells
    assert "0 to 0" in cells
    assert not any("0.00000" in cell for cell in cells)


def page_of(
    report: pathlib.Path, browser: Any, scheme: str, width: int
) -> dict[str, Any]:
    """Returns sizes in pixels and colors of the page in a browser."""
    page = browser.new_page(
        viewport={"width": width, "height": 1000}, color_scheme=scheme
    )
    page.goto((report / "report.html").as_uri())
    found: dict[str, Any] = page.evaluate(
        """() => {
          const style = e => getComputedStyle(e);
          const cells = [...document.querySelectorAll("th, td, li, dd, p, h1, h2")];
          return {
            scrolled: document.documentElement.scrollWidth,
            chart: document.querySelector(".charts").getBoundingClientRect().width,
            paper: style(document.body).backgroundColor,
            ink: style(document.body).color,
            text: style(document.querySelector("svg text")).fill,
            line: style(
              document.querySelector("svg g[id^='matplotlib.axis'] use")
            ).stroke,
            alignments: [...new Set(cells.map(e => style(e).textAlign))],
          };
        }"""
    )
    page.close()
    return found


def luminance(color: str) -> float:
    """Returns the luminance of a color, from 0 to 255, without gamma."""
    red, green, blue = map(int, re.findall(r"\d+", color)[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(
    ("scheme", "width"),
    # Neither depends on the other.
    chosen(
        itertools.product(("light", "dark"), WIDTHS),
        [*zip(("light", "dark"), WIDTHS, strict=True)],
    ),
)
def test_a_browser_shows_it_light_and_dark(
    report: pathlib.Path, scheme: str, width: int
) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"]
        )
        shown = page_of(report, browser, scheme, width)
        browser.close()
    # The page itself never scrolls sideways; tables and charts do so by themselves.
    assert shown["scrolled"] == width
    assert shown["chart"] > 0.85 * width
    assert set(shown["alignments"]) <= {"left", "start"}
    contrast = luminance(shown["paper"]) - luminance(shown["ink"])
    assert abs(contrast) > 150
    assert (contrast > 0) == (scheme == "light")
    assert shown["text"] == shown["ink"] == shown["line"]


def test_the_commit_is_that_of_the_code_and_unknown_without_git(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("git") is None:
        pytest.skip("no git")
    monkeypatch.chdir(tmp_path)
    assert code_version() is None
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    (tmp_path / "code.py").write_text("1\n")
    for words in (("init", "-q"), ("add", "."), (*author, "commit", "-qm", "one")):
        subprocess.run(["git", *words], check=True, cwd=tmp_path)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    assert code_version() == head
    (tmp_path / "code.py").write_text("2\n")
    assert code_version() == f"{head}+changes"
    monkeypatch.setenv("PATH", str(ROOT / "docs"))
    assert code_version() is None
