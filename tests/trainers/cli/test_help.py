"""The pages of --help: that they can be read, and that what they show is so."""

import pathlib
import re
import shlex

import pytest

import models
from strategies import registry
from strategies.cluster.spec import Cluster
from strategies.common.errors import UsageError
from tests import processes
from trainers.cli import flags, help
from trainers.cli.help import MODE_PAGES
from trainers.cli.role import cluster_of
from trainers.config.config import Config
from trainers.config.groups import all_fields, option
from trainers.config.run import MODES

README = processes.ROOT / "README.md"
PAGES = [
    "--help",
    "--helpfull",
    *(f"--mode={mode} --help" for mode in MODE_PAGES),
    *(f"--strategy={strategy} --help" for strategy in registry.names()),
]


def page_of(words: str) -> str:
    with pytest.raises(flags.HelpRequested) as shown:
        flags.parse(["main", *words.split()])
    return str(shown.value)


def headings_by_flag(page: str) -> list[tuple[str, str]]:
    """Returns every flag or --set that a page explains, each with its heading."""
    found = []
    heading = None
    for line in page.splitlines():
        if re.fullmatch(r"\w.*:", line):
            heading = line
        entry = re.match(r"  --(?:\[no\])?(set=[a-z]\w*\.\w+|\w+)(=\S+)?$", line)
        if entry is not None and heading is not None:
            found.append((entry[1], heading))
    return found


def commands_on(page: str) -> list[str]:
    """Returns the commands that a page shows, each joined to one line."""
    joined = re.sub(r" \\\n +", " ", page)
    return re.findall(r"^  (python -m trainers\.main .*)$", joined, re.M)


@pytest.mark.parametrize("words", PAGES)
def test_no_line_is_longer_than_a_terminal_of_80_columns(words: str) -> None:
    assert [line for line in page_of(words).splitlines() if len(line) > 80] == []


@pytest.mark.parametrize(("terminal", "most"), [("60", 60), ("200", 80)])
def test_a_page_fits_a_narrow_terminal(
    terminal: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", terminal)
    lines = page_of("--mode=compare --help").splitlines()
    # The name of a flag, with its default, is not broken.
    lines = [line for line in lines if not re.match(r" *--", line)]
    assert most - 15 < max(map(len, lines)) <= most


@pytest.mark.parametrize("words", PAGES)
def test_a_page_is_plain_text_without_trailing_spaces(words: str) -> None:
    page = page_of(words)
    assert re.findall(r"[^\x20-\x7e\n]", page) == []
    assert re.findall(r" +$", page, re.M) == []


def test_every_setting_has_one_entry_under_one_heading() -> None:
    shown = headings_by_flag(page_of("--helpfull"))
    accepted = [option(name).removeprefix("--") for name in all_fields()]
    accepted += help.COMMAND_FLAGS
    assert sorted(name for name, _ in shown) == sorted(accepted)
    assert len({heading for _, heading in shown}) > 10


def test_every_flag_is_on_the_first_page_or_on_one_of_its_own() -> None:
    shown = {page: [n for n, _ in headings_by_flag(page_of(page))] for page in PAGES}
    first = shown.pop("--help")
    assert len(set(first)) == len(first)
    del shown["--helpfull"]
    others = {name for names in shown.values() for name in names}
    flags_of_settings = {
        name for name, (_, field) in all_fields().items() if field.metadata["has_flag"]
    }
    assert flags_of_settings - {*first} <= others
    assert {*first} <= flags_of_settings | {*help.COMMAND_FLAGS}


def test_the_page_of_a_strategy_has_the_flags_that_not_all_have() -> None:
    shown = {
        name: {flag for flag, _ in headings_by_flag(page_of(f"--strategy={name} -h"))}
        for name in registry.names()
    }
    assert "num_ps" in shown["parameter_server"]
    assert {"num_workers", "sync_every_steps"} <= shown["multi_worker_mirrored"]
    # Defaults of a setting that only some strategies have.
    assert {"outer_optimizer", "outer_dtype"} <= shown["parameter_averaging"]
    assert "outer_dtype" not in page_of("--help")
    assert shown["one_device"] == set()
    assert "learning_rate" not in set.union(*shown.values())
    assert "num_workers" not in page_of("--help")


@pytest.mark.parametrize("text", [page_of("--help"), README.read_text("utf-8")])
def test_the_page_that_is_an_example_has_flags(text: str) -> None:
    (strategy,) = re.findall(r"--strategy=(\w+) --help", text)
    assert headings_by_flag(page_of(f"--strategy={strategy} --help"))


def test_a_mode_is_more_than_a_strategy() -> None:
    both = page_of("--mode=compare --strategy=tower --help")
    assert both == page_of("--mode=compare --help")


def test_help_is_short_enough_to_be_read() -> None:
    shown = headings_by_flag(page_of("--help"))
    # The settings, and five flags of the command line itself.
    assert len(shown) - 5 <= 60
    by_heading: dict[str, list[str]] = {}
    for name, heading in shown:
        by_heading.setdefault(heading, []).append(name)
    assert max(map(len, by_heading.values())) <= 16


def test_it_names_every_choice_and_default() -> None:
    page = page_of("--helpfull")
    for name in (*registry.names(), *models.names(), *MODE_PAGES):
        assert name in page
    for line in (
        "  --learning_rate=0.001",
        "  --hidden_units=128,64",
        "  --set=optimizer.momentum=0.9",
        "  --set=data.augmentation=true",
        "  --set=report.record_steps=false",
    ):
        assert line in page.splitlines()


def test_the_beginning_is_usage_examples_and_modes() -> None:
    begin = page_of("--help").partition("\n\nThe value after = ")[0]
    assert begin.startswith("Usage: python -m trainers.main ")
    assert len(begin.splitlines()) < 25, "more than a screen"
    assert page_of("--helpfull").startswith(begin)
    assert len(commands_on(begin)) == 2
    shown = re.findall(r"^  --mode=(\w+) +(\S.*)$", begin, re.M)
    assert [name for name, _ in shown] == list(MODE_PAGES) == list(MODES)


@pytest.mark.parametrize("words", PAGES)
def test_every_example_is_accepted(words: str) -> None:
    for command in commands_on(page_of(words)):
        config = flags.parse(shlex.split(command)[2:])
        assert isinstance(config, Config)
        # The checks of what this process would be: of a cluster, its launcher.
        assert cluster_of(config, {}) in (None, Cluster())


@pytest.mark.parametrize("mode", MODE_PAGES)
def test_the_page_of_a_mode_is_about_it(mode: str) -> None:
    page = page_of(f"--mode={mode} --help")
    assert page.startswith("Usage: python -m trainers.main ")
    assert MODE_PAGES[mode].summary.split()[0] in page
    own = commands_on(page)
    assert own
    for command in own:
        assert flags.parse(shlex.split(command)[2:]).run.mode == mode


def test_the_page_of_a_mode_has_the_flags_of_that_mode() -> None:
    pages = {m: headings_by_flag(page_of(f"--mode={m} --help")) for m in MODE_PAGES}
    names = {mode: {name for name, _ in shown} for mode, shown in pages.items()}
    assert names["compare"] >= {"strategies", "arm", "runs", "seeds", "trackers"}
    assert names["predict"] >= {"strategies", "replicas"}
    assert names["verify"] == {"strategies"}
    assert names["evaluate"] == {"exported_model"}


def test_help_on_a_mode_that_is_not_there_is_all_of_it() -> None:
    assert page_of("--mode=compaer --help") == page_of("--help")


def test_a_file_of_settings_cannot_ask_for_help(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"run": {"help": true}}', encoding="utf-8")
    with pytest.raises(UsageError, match="is not a setting"):
        flags.parse(["main", f"--config={path}"])


@pytest.fixture(scope="module")
def folder_of_examples(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Folder of all examples: some use the runs of those before them."""
    return tmp_path_factory.mktemp("examples")


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("page", [page for page in PAGES if page != "--helpfull"])
def test_examples_work_one_after_the_other(
    page: str, folder_of_examples: pathlib.Path
) -> None:
    program = shlex.join(processes.command())
    for command in commands_on(page_of(page)):
        line = command.replace("python -m trainers.main", program, 1)
        patience_seconds = processes.PREDICT_PATIENCE_SECONDS
        words = ["sh", "-c", line]
        done = processes.run_patiently(words, patience_seconds, folder_of_examples)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
