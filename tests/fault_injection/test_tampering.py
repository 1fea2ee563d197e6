"""Checks that a changed file in a run folder cannot reach files outside of it."""

import pathlib
import shutil

import pytest

from strategies.cluster.spec import Cluster
from tests import processes
from tests.fault_injection.scenario import assert_promise_holds
from tests.fault_injection.scenarios import tampering
from tests.fault_injection.scenarios.tampering import (
    LENGTH,
    RESUME,
    SMALL_RUN,
    TAMPERINGS,
)
from trainers.cli import flags
from trainers.experiments.arms import arms_of
from trainers.experiments.compare.comparison_dir import ComparisonDir
from trainers.main import main


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Trains a run with a checkpoint and a recording; tests copy its folder."""
    path = tmp_path_factory.mktemp("finished") / "run"
    assert main(["main", *SMALL_RUN, LENGTH, f"--run_dir={path}"]) == 0
    return path


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Changes into a folder, beside which no test may change anything."""
    path = tmp_path / "here"
    path.mkdir()
    tampering.make_outside(path / "outside")
    monkeypatch.chdir(path)
    return path


@pytest.fixture
def run(finished_run: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(finished_run, folder / "run"))


def refusal(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Returns the error line of a command, which must be refused and change nothing."""
    before = processes.contents(pathlib.Path.cwd())
    assert main(["main", *arguments]) == 2
    captured = capfd.readouterr()
    assert "secret" not in captured.out + captured.err
    *warnings, line = captured.err.splitlines()
    assert all(words.startswith("warning: checkpoint ") for words in warnings)
    assert line.startswith("error: ")
    assert processes.contents(pathlib.Path.cwd()) == before
    return line


@pytest.mark.parametrize("name", TAMPERINGS)
def test_what_may_lead_out_of_a_run_folder_is_refused(
    name: str,
    run: pathlib.Path,
    folder: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Every command that uses the folder refuses, as any task of a cluster."""
    TAMPERINGS[name](run, folder / "outside")
    assert "run" in refusal(capfd, "--run_dir=run", *RESUME)
    refusal(capfd, "--run_dir=run", "--mode=evaluate")
    several = ("--strategy=parameter_server", "--run_dir=run", "--resume=auto")
    if (run / "config.json").is_file() and "step-00000002" not in name:
        # The launcher refuses before it starts a task.
        refusal(capfd, *several, "--model=mlp", "--hidden_units=8")
    if "step-00000002" in name or "config.json is a pipe" in name:
        # Tasks that do not train read neither the checkpoint nor the configuration.
        return
    addresses = {"chief": ("localhost:1",), "worker": ("localhost:2",)}
    for job in ("ps", "worker"):
        cluster = Cluster(job=job, addresses={**addresses, "ps": ("localhost:3",)})
        monkeypatch.setenv("TF_CONFIG", cluster.tf_config())
        assert "--run_dir=run cannot be used" in refusal(capfd, *several)


def test_the_run_itself_would_have_gone_on(
    run: pathlib.Path, folder: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The tests above would pass on a run that is refused for something else."""
    outside = processes.contents(folder / "outside")
    # Only this path in the configuration still names the folder of the original run.
    tampering.configured(run_dir="{outside}/run")(run, folder / "outside")
    assert main(["main", "--mode=evaluate", "--run_dir=run"]) == 0
    assert main(["main", "--run_dir=run", *RESUME]) == 0
    assert "continued at step 2" in capfd.readouterr().out
    assert processes.result_of(run)["steps"] == 4
    assert processes.contents(folder / "outside") == outside


PATHS = {
    "--data_path": {"dataset": "tfrecord", "data_path": "{outside}/precious.txt"},
    "--eval_data_path": {
        "dataset": "tfrecord",
        "data_path": "{outside}/precious.txt",
        "eval_data_path": "{outside}/precious.txt",
    },
}


@pytest.mark.parametrize("name", PATHS)
def test_paths_of_data_are_taken_from_flags(
    name: str,
    run: pathlib.Path,
    folder: pathlib.Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    tampering.configured(**PATHS[name])(run, folder / "outside")
    line = refusal(capfd, "--mode=evaluate", "--run_dir=run")
    advice = f"add --dataset=tfrecord --data_path={folder}/outside/precious.txt"
    assert advice in line
    assert name in line
    _, _, flags_to_add = line.partition(": add ")
    given = [word for word in flags_to_add.split() if word.startswith("--")]
    # With the advised flags the user has named the file, whose content is then refused.
    line = refusal(capfd, "--mode=evaluate", "--run_dir=run", *given)
    assert line.startswith(f"error: {folder}/outside/precious.txt: record 0 at byte 0")


NAMES = {
    "model": ("os:system", "../outside/model", "keras:../x", "outside.model"),
    "dataset": ("os", "../outside/data", "os:system"),
    "strategy": ("os", "../strategies/tower", "os:system"),
    "optimizer": ("os:system",),
}


@pytest.mark.parametrize("setting", NAMES)
def test_no_name_in_a_run_folder_is_imported(
    setting: str,
    run: pathlib.Path,
    folder: pathlib.Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name in NAMES[setting]:
        tampering.configured(**{setting: name})(run, folder / "outside")
        for arguments in (RESUME, ("--mode=evaluate",), ("--config=run/config.json",)):
            # Without the name of the mlp its width has no effect and would be refused.
            left_out = (setting, "hidden_units") if setting == "model" else (setting,)
            flags_ = [w for w in arguments if not any(part in w for part in left_out)]
            line = refusal(capfd, "--run_dir=run", *flags_)
            # The name has the form of a user's function, which only flags may name.
            assert f"--{setting}={name} " in line or f"(was {name})" in line


# Comparisons, which remove unfinished runs before they start them again.

COMPARE = (
    *("--mode=compare", "--strategies=one_device,tower", "--seeds=1", "--seed=7"),
    *("--model=mlp", "--run_dir=compared"),
)
LINKS = (
    *("plan.json", "runs", "runs/tower", "runs/tower/seed-7", "warm_up"),
    *("warm_up/tower", "logs", "logs/tower-seed-7.log"),
)


def make_comparison(path: pathlib.Path) -> None:
    """Makes a comparison that was killed early: a plan and an unfinished run."""
    config = flags.parse(["main", *COMPARE])
    comparison = ComparisonDir(str(path))
    comparison.begin(arms_of(config), config.run.seed, (1, 1))
    for name in ("runs/tower/seed-7", "warm_up/tower"):
        (path / name).mkdir(parents=True)
        (path / name / "config.json").write_text("{}")
    (path / "logs/tower-seed-7.log").write_text("printed")


@pytest.mark.parametrize("part", LINKS)
def test_what_may_lead_out_of_a_comparison_is_refused(
    part: str, folder: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_comparison(folder / "compared")
    tampering.moved_out(part)(folder / "compared", folder / "outside")
    line = refusal(capfd, *COMPARE)
    assert f"compared/{part}: it is a link, which may lead out" in line


ARMS = '"first_seed": 7, "arms": {"one_device": {}, "tower": {}}'
LOOKS = (
    "3",
    "[3]",
    "[[3]]",
    '[["a", 3]]',
    "[[true, 3]]",
    "[[4, 3]]",
    "[[3, 5], [5, 6]]",
)
PLANS = (
    *("[]", "3", "{}", "[" * 9999),
    *('{"first_seed": 7, "looks": []}', '{"first_seed": 7, "arms": [], "looks": []}'),
    '{"first_seed": 7, "arms": {"one_device": 1, "tower": {}}, "looks": []}',
    f"{{{ARMS}}}",
    *(f'{{{ARMS}, "looks": {looks}}}' for looks in LOOKS),
)


@pytest.mark.parametrize("content", PLANS)
def test_a_plan_of_another_form_is_refused(
    content: str, folder: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_comparison(folder / "compared")
    (folder / "compared" / "plan.json").write_text(content)
    assert "its plan.json is damaged" in refusal(capfd, *COMPARE)


@pytest.mark.parametrize("name", ["result.json is a link", "logs is a link"])
def test_runs_that_are_compared_must_be_where_they_are_said_to_be(
    name: str,
    run: pathlib.Path,
    folder: pathlib.Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(run, folder / "other")
    TAMPERINGS[name](run, folder / "outside")
    line = refusal(capfd, "--mode=compare", "--runs=a:run,b:other")
    assert line.startswith("error: --run_dir=run cannot be used (run/")


def test_a_real_command_refuses_as_well() -> None:
    (scenario,) = tampering.SCENARIOS
    assert_promise_holds(scenario, seed=1)
