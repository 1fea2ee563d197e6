"""Checks of tables, names, paths, links, commands and output in the documents."""

import pathlib
import re
import shlex
import subprocess
import sys

import keras
import numpy as np
import pytest

from models.classification import ModelSpec
from strategies import registry
from strategies.common.errors import ExitCode
from strategies.common.fields import choices_of, field_types
from strategies.config import StrategyConfig
from tests import processes
from tests.event_files import read_events
from tests.processes import ROOT
from trainers import matpow, write_tfrecord
from trainers.cli import help
from trainers.config.groups import GROUPS, all_fields
from trainers.config.model import ModelConfig
from trainers.inputs.sources import ArraySource, Data

# Other files test the first page, and the second one is made of docstrings.
OTHER_PAGES = {"docs/add_a_strategy.md", "docs/reference.md"}

PAGES = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
DOCUMENTS = (
    *("README.md", "BUILD.md", "CHANGELOG.md", "CONTRIBUTING.md", "deploy/README.md"),
    "examples/README.md",
    *sorted(PAGES - OTHER_PAGES),
)

# Flags of other programs: tensorboard, ruff, uv, srun, examples/on_ray.py, docker, and
# programs in texts about TensorFlow 1.
FOREIGN_FLAGS = {"logdir", "host", "check", "upgrade", "ntasks", "distribution", "gpus"}
FOREIGN_FLAGS |= {"address", "file", "tag"}
FOREIGN_FLAGS |= {"job_name", "task_index", "num_gpus"}
# Flags of the commands in benchmarks/ and tests/fault_injection/.
FOREIGN_FLAGS |= {"only", "pairs", "list", "record", "repetitions"}

# The reader of docs/own_models.md writes this file.
NOT_IN_THE_REPOSITORY = {"models/tiny.py"}

MOST_PICTURE_BYTES = 200_000
MOST_LINES_OF_README = 180
MOST_LINES_OF_A_PAGE = 265
# Readers look up a section of these pages, and do not read them as a whole.
LONG_PAGES = {"docs/numerics.md", "docs/performance_history.md"}


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(document: str, language: str) -> list[str]:
    """Returns the fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(document), re.M | re.S)


def code_of(document: str) -> list[str]:
    """Returns every piece of code: the content of fenced blocks and of `spans`."""
    text = text_of(document)
    fence = r"^```\w*\n(.*?)^```$"
    outside = re.sub(fence, "", text, flags=re.M | re.S)
    return re.findall(fence, text, re.M | re.S) + re.findall(r"`([^`]+)`", outside)


def section(document: str, heading: str) -> str:
    """Returns the text from a heading to the next heading of any level."""
    (found,) = re.findall(
        rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", text_of(document), re.M | re.S
    )
    return found


def table_rows(text: str) -> list[list[str]]:
    """Returns the cells of the first table in a text, without its header."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def spans(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def strategies_table() -> str:
    """Returns the README's table, made from the declarations of strategies."""
    header = (
        "`--strategy`",
        "what it does",
        *("synchronous", "same training", "processes", "replicas"),
    )
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    kinds = [
        (name, update)
        for name in registry.names()
        for update in registry.traits(name).updates or (None,)
    ]
    for name, update in kinds:
        traits = StrategyConfig(strategy=name, update=update).traits
        several = "several: " + ", ".join(traits.roles)
        cells = (
            f"`{name}`" + (f" `--update={update}`" if update else ""),
            traits.summary,
            "yes" if traits.synchronous else "no",
            "yes" if traits.matches_one_device else "no",
            several if traits.multi_process else "one",
            traits.max_replicas or "any number",
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def test_the_table_of_strategies_is_what_strategies_declare() -> None:
    (table,) = re.findall(
        r"<!-- strategies: begin.*?-->\n(.*?)\n<!-- strategies: end -->",
        text_of("README.md"),
        re.S,
    )
    assert table == strategies_table(), f"it should be\n{strategies_table()}"


# Pages that name flags which were renamed or removed.
HISTORY = ("CHANGELOG.md", "docs/performance_history.md")
PRESENT = [document for document in DOCUMENTS if document not in HISTORY]


@pytest.mark.parametrize("document", PRESENT)
def test_every_flag_exists(document: str) -> None:
    known = FOREIGN_FLAGS | {*write_tfrecord.make_flags(), *matpow.make_flags()}
    known |= {*help.COMMAND_FLAGS}
    for name, (config_class, field) in all_fields().items():
        if field.metadata["has_flag"]:
            is_switch = field_types(config_class)[name][0] is bool
            known |= {name, f"no{name}"} if is_switch else {name}
    named = set(re.findall(r"(?<![\w-])--([a-z]\w*)", text_of(document)))
    assert named - known == set()


@pytest.mark.parametrize("document", PRESENT)
def test_every_setting_of_a_group_exists(document: str) -> None:
    """Documents write settings as `--set=group.name=value` and as `group.name`."""
    text = text_of(document)
    for group, name in re.findall(r"--set=([a-z]\w*)\.(\w+)=", text):
        assert (group, name) in GROUPED or group == "group", f"{group}.{name}"
    for name, value in re.findall(r"--set=[a-z]\w*\.(\w+)=([^\s`|,):]+)", text):
        if name in all_fields() and field_types(all_fields()[name][0])[name][0] is bool:
            assert value in ("true", "false"), f"{name}={value}"
    for group, name in re.findall(rf"`({'|'.join(GROUPS)})\.(\w+)`", text):
        # A name such as `comparison.json` is a file.
        if name in all_fields():
            assert (group, name) in GROUPED, f"{group}.{name}"


GROUPED = {(group.group, name) for name, (group, _) in all_fields().items()}


def test_every_choice_of_a_flag_that_is_given_exists() -> None:
    """The test reads the words after flags with choices, such as --strategy=."""
    for document in DOCUMENTS:
        for name, value in re.findall(r"--(\w+)=([a-z][\w:.]*\w)", text_of(document)):
            field = all_fields()[name][1] if name in all_fields() else None
            # NAME stands for a name that the reader inserts.
            if field is None or not field.metadata["choices"] or "NAME" in value:
                continue
            why_not = field.metadata["why_not"]
            is_accepted = value in (choices_of(field) or ()) or (
                why_not is not None and why_not(value) is None
            )
            assert is_accepted, f"{document}: --{name}={value}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_target_of_make_exists(document: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.M))
    for code in code_of(document):
        for target in re.findall(r"\bmake ([a-z][a-z-]*)\b(?!=)", code):
            assert target in targets


def holds_files(path: pathlib.Path) -> bool:
    """Returns whether a fresh clone would have the file, or the folder with a file.

    A folder that was moved away stays on a developer's disk as long as it has a
    `__pycache__`, so that its existence alone proves nothing.
    """
    files = (file for file in path.rglob("*") if file.is_file())
    return path.is_file() or any("__pycache__" not in file.parts for file in files)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_is_named_exists(document: str) -> None:
    folders = "strategies|models|trainers|tests|docs|requirements"
    for code in code_of(document):
        for path in re.findall(rf"(?<![\w./])(?:{folders})/[\w./]+", code):
            if path not in NOT_IN_THE_REPOSITORY:
                assert holds_files(ROOT / path) or (ROOT / f"{path}.py").exists(), path


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_resolve(document: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(document)):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / document).parent / path if path else ROOT / document
        assert file.is_file(), target
        if anchor:
            assert anchor in anchors_of(file.read_text(encoding="utf-8")), target


def test_the_readme_fits_on_one_screen() -> None:
    assert len(text_of("README.md").splitlines()) <= MOST_LINES_OF_README


def test_pages_are_short_enough_to_be_read() -> None:
    lengths = {page: text_of(page).count("\n") for page in PAGES - LONG_PAGES}
    assert {p for p in lengths if lengths[p] > MOST_LINES_OF_A_PAGE} == set()


def test_the_first_page_links_to_every_other() -> None:
    linked = re.findall(r"\]\((\w+\.md)\)", text_of("docs/index.md"))
    assert {f"docs/{name}" for name in linked} == PAGES - {"docs/index.md"}


def anchors_of(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", h).lower().replace(" ", "-") for h in headings}


def test_tensorboard_is_suggested_on_this_machine_only() -> None:
    """The test looks at every command that starts TensorBoard."""
    code = [path for p in ("strategies", "trainers") for path in (ROOT / p).rglob("*")]
    files = [path for path in code if path.suffix in (".py", ".j2")]
    files += [ROOT / document for document in DOCUMENTS]
    lines = [
        line
        for path in files
        for line in path.read_text(encoding="utf-8").splitlines()
        if "--logdir=" in line
    ]
    assert len(lines) > 4
    assert [line for line in lines if "--host=localhost" not in line] == []


def test_pictures_are_there_and_small() -> None:
    shown = {
        (ROOT / document).parent / path
        for document in DOCUMENTS
        for path in re.findall(r"!\[[^]]+\]\(([^)]+)\)", text_of(document))
    }
    assert shown == set((ROOT / "docs" / "pictures").iterdir())
    for picture in shown:
        content = picture.read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) < MOST_PICTURE_BYTES, picture


@pytest.mark.parametrize("document", DOCUMENTS)
def test_nothing_belongs_to_one_machine(document: str) -> None:
    text = text_of(document)
    assert re.findall(r"(?<![\w.])/(?:home|root|tmp|work|opt|usr|mnt)\b", text) == []
    assert re.findall(r"pypi|/simple\b|index-url", text) == []


def test_dependencies_are_those_of_pyproject_and_the_locks() -> None:
    required = requirements_of_pyproject()
    rows = table_rows(section("BUILD.md", "Dependencies and locks"))
    assert {spans(row[0])[0] for row in rows} == set(required)
    for name, allowed, locked, _ in rows:
        (package,) = spans(name)
        found = re.findall(r"[\d.]+\*?", re.sub(r"Python [\d.]+", "", allowed))
        assert set(found) == required[package], package
        assert set(locked.split(", ")) == locked_versions("test", package), package


def test_versions_for_gpus_are_those_of_the_lock() -> None:
    rows = table_rows(section("BUILD.md", "GPU"))
    assert rows
    for name, version, _ in rows:
        assert locked_versions("gpu", spans(name)[0]) == {version}


def requirements_of_pyproject() -> dict[str, set[str]]:
    """Returns the versions that pyproject.toml names for each package, without gpu."""
    found: dict[str, set[str]] = {}
    listed = re.findall(
        r"^ +\"([\w-]+)(?:>=|==)([^\";]+?)(?: *;[^\"]*)?\"",
        text_of("pyproject.toml"),
        re.M,
    )
    for package, version in listed:
        found.setdefault(package, set()).add(version)
    return found


def locked_versions(lock: str, package: str) -> set[str]:
    text = text_of(f"requirements/{lock}.lock")
    return set(re.findall(rf"^{re.escape(package)}==(\S+)", text, re.M))


def test_exit_codes_are_all_explained() -> None:
    rows = table_rows(section("docs/exit_codes.md", "Exit codes"))
    explained = {int(code) for row in rows for code in row[0].split(", ")}
    assert explained == {int(code) for code in ExitCode}


def test_the_model_of_own_models_builds() -> None:
    source = blocks("docs/own_models.md", "python")[-1]
    names: dict[str, object] = {}
    exec(source, names)
    spec = names["SPEC"]
    assert isinstance(spec, ModelSpec)
    none = ArraySource(np.zeros([0, 8, 8, 1]), np.zeros([0]))
    data = Data(train=none, evaluation=none, input_shape=(8, 8, 1), num_classes=10)
    model = spec.build(data, ModelConfig())
    assert isinstance(model, keras.Model)
    assert model(np.zeros([2, 8, 8, 1])).shape == (2, 10)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Makes a folder that looks like an installed clone, with this interpreter."""
    folder = tmp_path_factory.mktemp("clone")
    for name in (
        *("Makefile", "pyproject.toml", "requirements"),
        *("strategies", "models", "trainers", "tests"),
    ):
        (folder / name).symlink_to(ROOT / name)
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    for step in (".made", ".runtime", ".test"):
        (folder / ".venv" / step).touch()
    return folder


def run_in(folder: pathlib.Path, script: str) -> str:
    """Runs a shell script to its end and returns what it printed."""
    ours = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "ARGS", "PYTHON")
    environment = {n: v for n, v in processes.environment().items() if n not in ours}
    done = subprocess.run(
        ["sh", "-e", "-c", script],
        cwd=folder,
        # If make tries to install a package, pip finds nothing and fails.
        env={**environment, "PIP_NO_INDEX": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=processes.PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def printed(workspace: pathlib.Path) -> str:
    """Returns the output of the commands of BUILD.md that are marked to be run."""
    marked = r"^<!-- run -->\n\n```sh\n(.*?)^```$"
    scripts = re.findall(marked, text_of("BUILD.md"), re.M | re.S)
    assert len(scripts) == text_of("BUILD.md").count("<!-- run -->")
    return "".join(run_in(workspace, script) for script in scripts)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_commands_of_build_work(printed: str, workspace: pathlib.Path) -> None:
    for name, steps in {"short": 20, "short-four": 30, "short-records": 20}.items():
        result = processes.result_of(workspace / "runs" / name)
        assert (result["status"], result["steps"]) == ("completed", steps)
    assert "eval  | step 30 | " in printed


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_output_in_the_readme_looks_like_the_real_one(printed: str) -> None:
    """The test compares lines without numbers and names of folders, or devices."""
    real = {shape_of(line) for line in printed.splitlines()}
    shown = blocks("README.md", "text")[0].splitlines()
    assert len(shown) >= 8
    for line in shown:
        assert line.startswith(("strategy  mirrored: ", ".venv/")) or (
            shape_of(line) in real
        ), line


def shape_of(line: str) -> str:
    line = re.sub(r"^(view +)\S.*(--logdir)", r"\1\2", line)
    line = re.sub(r"runs/[\w-]+", "runs/name", line)
    return re.sub(r" +", " ", re.sub(r"\d[\d,.]*", "N", line))


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns a run folder as BUILD.md's `make train` for 20 steps leaves it."""
    folder = tmp_path_factory.mktemp("runs") / "short"
    processes.train(folder, "--strategy=mirrored", "--train_steps=20")
    return folder


@pytest.mark.slow
def test_the_fields_of_result_json_are_all_explained(short: pathlib.Path) -> None:
    explained = [
        field
        for row in table_rows(section("docs/reading_a_run.md", "result.json"))
        for field in spans(row[0])
    ]
    result = processes.result_of(short)
    assert {field.split(".")[0] for field in explained} == set(result)
    for group in ("final", "throughput"):
        parts = {f.split(".")[1] for f in explained if f.startswith(f"{group}.")}
        # The row `eval_<metric>` stands for all other metrics.
        assert {part for part in parts if "<" not in part} == set(result[group])
    words = spans(section("docs/reading_a_run.md", "result.json"))
    for group in ("seconds", "communication"):
        assert set(result[group]) <= set(words), group


@pytest.mark.slow
def test_the_fields_of_metrics_and_the_tags_are_all_explained(
    short: pathlib.Path,
) -> None:
    text = section("docs/reading_a_run.md", "metrics.jsonl and TensorBoard")
    words = set(spans(text))
    fields = {name for row in processes.metrics_of(short) for name in row}
    assert fields - {"step"} <= words
    tags = {tag for row in table_rows(text) for tag in spans(row[1])}
    for split in ("train", "eval"):
        for tag in read_events(short / "tb" / split).points:
            known = tag in tags or f"{tag.split('/')[0]}/..." in tags
            assert known or tag.startswith("__"), tag


def test_the_installing_commands_install_the_locks(workspace: pathlib.Path) -> None:
    """They are dry runs, in which the first lock is newer than the environment."""
    (commands,) = re.findall(
        r"```sh\n(.*?)```", section("BUILD.md", "Installing"), re.S
    )
    dry = "make --dry-run --what-if=requirements/runtime.lock "
    planned = run_in(workspace, re.sub("^make ", dry, commands, flags=re.M))
    for lock in ("runtime", "test", "gpu"):
        assert f"--require-hashes --requirement requirements/{lock}.lock" in planned
