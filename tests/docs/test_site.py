"""Checks that the site has every page, and that every link leads to a page."""

import html
import inspect
import os
import pathlib
import re
import subprocess
import sys

import pytest

from strategies.base import Strategy, Traits
from strategies.inner_loop.sharding import shard_rows
from tests.processes import ROOT
from trainers.api import TrainingResult
from trainers.inputs.sources import ArraySource


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Builds the site by the commands of `make docs`, in a copy made of links."""
    folder = tmp_path_factory.mktemp("project")
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and path.name != "build":
            (folder / path.name).symlink_to(path)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"^docs: .*\n((?:\t.*\n)+)", makefile, re.M)
    (pages,) = re.findall(r"^site_pages := (.*)$", makefile, re.M)
    script = recipe.replace("\t", "").replace("@", "").replace("$(site_pages)", pages)
    script = script.replace("$(python)", sys.executable).replace("cp -r", "cp -rL")
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        ["sh", "-e", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # The build is strict: a link that leads nowhere is a warning, which is an error.
    assert "WARNING" not in done.stderr
    return folder / "build" / "site"


def test_every_page_of_the_documents_is_in_it(site: pathlib.Path) -> None:
    for path in (ROOT / "docs").glob("*.md"):
        name = "docs" if path.stem == "index" else f"docs/{path.stem}"
        assert (site / name / "index.html").is_file(), path.name


def test_the_reference_has_the_docstrings(site: pathlib.Path) -> None:
    page = (site / "docs" / "reference" / "index.html").read_text(encoding="utf-8")
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    assert "No module named" not in text
    for documented in (TrainingResult, Strategy, Traits, ArraySource, shard_rows):
        name = documented.__name__
        first_line = (inspect.getdoc(documented) or "").splitlines()[0]
        assert name in text
        assert first_line.replace("`", "") in text, name


def test_pages_bring_their_scripts_and_styles(site: pathlib.Path) -> None:
    """Drawings are an exception: the theme's script fetches Mermaid for a drawing."""
    outside = re.compile(r"<(?:script|link)[^>]+(?:src|href)=\"(https?:[^\"]+)")
    pages = list(site.rglob("*.html"))
    found = [outside.findall(page.read_text(encoding="utf-8")) for page in pages]
    assert len(pages) > 10
    assert [urls for urls in found if urls] == []
