"""--mode=compare --runs: verdicts, remarks and files from runs made by hand."""

import json
import pathlib
import re
import sys
import tempfile
from typing import Any

import jsonschema
import pytest

from tests.markers import further
from tests.processes import ROOT, contents, run_words
from tests.trainers.experiments.compare.run_factory import make_arm, make_run
from trainers.experiments.compare import report
from trainers.experiments.run_record import read_run
from trainers.main import main

SPEEDS = (1000.0, 1100.0, 900.0, 1050.0, 950.0)


def scaled(factor: float, *noise: float) -> list[float]:
    return [
        speed * factor * (1 + n)
        for speed, n in zip(SPEEDS, noise or (0.0,) * 5, strict=True)
    ]


def compare(
    folder: pathlib.Path,
    *arms: str,
    flags: tuple[str, ...] = (),
    has_charts: bool = False,
) -> int:
    """Compares runs into a folder `out`, without charts, which take most of the time.

    A test has charts where the runs are unlike all others.
    """
    out = f"--run_dir={folder / 'out'}"
    with pytest.MonkeyPatch.context() as patch:
        if not has_charts:
            patch.setattr(report, "charts_of", lambda *_: [])
        return main(["main", "--mode=compare", f"--runs={','.join(arms)}", out, *flags])


def concluded(folder: pathlib.Path) -> dict[str, Any]:
    """comparison.json, which must be what its schema says."""
    text = (folder / "out" / "comparison.json").read_text(encoding="utf-8")
    schema = json.loads((ROOT / "docs/comparison.schema.json").read_text("utf-8"))
    conclusion = json.loads(text)
    jsonschema.Draft202012Validator(schema).validate(conclusion)
    return conclusion


def verdict_of(folder: pathlib.Path, metric: str = "examples_per_second") -> str:
    (found,) = (
        c["verdict"]["words"]
        for c in concluded(folder)["comparisons"]
        if c["metric"] == metric
    )
    return found


def test_a_faster_arm_is_said_to_be_faster_and_by_how_much(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = make_arm(tmp_path / "slow", SPEEDS)
    fast = make_arm(
        tmp_path / "fast", scaled(1.8, 0.02, -0.02, 0.03, -0.03, 0.0), strategy="tower"
    )
    assert compare(tmp_path, slow, fast, has_charts=True) == 0
    assert verdict_of(tmp_path) == "faster by 1.80x (1.74 to 1.86)"
    printed = capsys.readouterr().out
    assert "verdict   fast: faster by 1.80x (1.74 to 1.86); the same" in printed
    assert max(map(len, printed.splitlines()[:3])) <= 80
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert page.index("faster by 1.80x") < page.index("<svg")
    assert re.findall(r"(?:src|href)=[\"'](?!#)", page) == [], "not self-contained"
    assert "faster by 1.80x" in (tmp_path / "out" / "report.md").read_text("utf-8")


def test_comparing_what_has_run_loads_no_tensorflow(tmp_path: pathlib.Path) -> None:
    one = make_arm(tmp_path / "one", SPEEDS)
    two = make_arm(tmp_path / "two", SPEEDS, strategy="tower")
    script = (
        "import sys; from trainers.main import main; code = main(sys.argv); "
        "print('loaded:', 'tensorflow' in sys.modules); sys.exit(code)"
    )
    flags = ("--mode=compare", f"--runs={one},{two}", f"--run_dir={tmp_path / 'out'}")
    done = run_words([sys.executable, "-c", script, *flags])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "loaded: False"
    assert verdict_of(tmp_path, "eval_accuracy") == "the same accuracy in all 5 seeds"


def test_equal_arms_are_not_told_apart_and_it_says_what_could_have_been_seen(
    tmp_path: pathlib.Path,
) -> None:
    noise = (0.02, -0.02, 0.03, -0.03, 0.001)
    one = make_arm(tmp_path / "one", SPEEDS)
    two = make_arm(tmp_path / "two", scaled(1.0, *noise), strategy="tower")
    margin = "--set=comparison.speed_margin_percent=1"
    assert compare(tmp_path, one, two, flags=(margin,)) == 0
    words = verdict_of(tmp_path)
    # Paired deviation of 2.6 %, 5 seeds: 1.68 deviations can be seen, as tables of
    # the power of t say.
    assert words == "cannot tell: would need a difference of 4.4 % in speed"
    assert verdict_of(tmp_path, "eval_accuracy") == "the same accuracy in all 5 seeds"


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (1.0, "speed equivalent within 10 %"),
        (1.05, "faster by 1.050x (1.017 to 1.084), within 10 % all the same"),
        (1 / 1.05, "slower by 1.050x (1.017 to 1.084), within 10 % all the same"),
        (1.2, "faster by 1.20x (1.16 to 1.24)"),
    ],
)
def test_speeds_are_equivalent_within_a_margin(
    tmp_path: pathlib.Path, factor: float, words: str
) -> None:
    noise = (0.02, -0.02, 0.03, -0.03, 0.001)
    one = make_arm(tmp_path / "one", SPEEDS)
    two = make_arm(tmp_path / "two", scaled(factor, *noise), strategy="tower")
    assert compare(tmp_path, one, two) == 0
    assert verdict_of(tmp_path) == words


def test_speed_and_accuracy_share_one_error_rate(tmp_path: pathlib.Path) -> None:
    noise = (0.02, -0.02, 0.03, -0.03, 0.001)
    one = make_arm(tmp_path / "one", SPEEDS)
    two = make_arm(
        *(tmp_path / "two", scaled(1.03, *noise), (0.93, 0.87, 0.92, 0.89, 0.9)),
        strategy="tower",
    )
    assert compare(tmp_path, one, two) == 0
    found = {c["metric"]: c for c in concluded(tmp_path)["comparisons"]}
    speed, accuracy = found["examples_per_second"], found["eval_accuracy"]
    assert speed["p_value"] < accuracy["p_value"]
    assert speed["p_value_holm"] == pytest.approx(2 * speed["p_value"])
    assert accuracy["p_value_holm"] == pytest.approx(accuracy["p_value"])
    # Other metrics have a rate of their own.
    steps = found["step_milliseconds_p50"]
    assert steps["p_value_holm"] == pytest.approx(steps["p_value"])


@pytest.mark.parametrize(
    ("accuracies", "words"),
    [
        ((0.888, 0.887, 0.889, 0.8885, 0.8875), "loses 1.2 points of accuracy"),
        (
            (0.9005, 0.8995, 0.9, 0.9004, 0.8999),
            "accuracy equivalent within 0.5 points",
        ),
        ((0.93, 0.87, 0.92, 0.89, 0.9), "cannot tell: would need a difference of "),
    ],
)
def test_accuracy_is_lost_equivalent_or_undecided(
    tmp_path: pathlib.Path, accuracies: tuple[float, ...], words: str
) -> None:
    one = make_arm(tmp_path / "one", SPEEDS)
    two = make_arm(tmp_path / "two", SPEEDS, accuracies, strategy="tower")
    assert compare(tmp_path, one, two) == 0
    assert verdict_of(tmp_path, "eval_accuracy").startswith(words)


def test_too_few_seeds_are_said_and_conclude_nothing(tmp_path: pathlib.Path) -> None:
    one = make_arm(tmp_path / "one", SPEEDS[:2])
    two = make_arm(tmp_path / "two", (2000, 2200), strategy="tower")
    assert compare(tmp_path, one, two, has_charts=True) == 0
    assert verdict_of(tmp_path).startswith("too few seeds to conclude: 2 in common")
    assert any("Too few seeds" in remark for remark in concluded(tmp_path)["remarks"])


def test_arms_and_their_names_follow_from_what_ran(tmp_path: pathlib.Path) -> None:
    settings_of: dict[str, dict[str, Any]] = {
        "a": {"strategy": "one_device"},
        "b": {"strategy": "tower", "num_replicas": 2},
        "c": {"strategy": "tower", "num_replicas": 4},
    }
    for name, settings in settings_of.items():
        make_arm(tmp_path / "runs" / name, SPEEDS, **settings)
    assert compare(tmp_path, str(tmp_path / "runs")) == 0
    conclusion = concluded(tmp_path)
    names = [arm["name"] for arm in conclusion["arms"]]
    assert names == ["one_device", "tower num_replicas=2", "tower num_replicas=4"]
    assert conclusion["control"] == "one_device"
    assert conclusion["different_settings"]["num_replicas"] == dict(
        zip(names, (None, 2, 4), strict=True)
    )


def test_names_of_arms_are_text_in_charts_and_tables(tmp_path: pathlib.Path) -> None:
    """Two dollar signs would be a formula, which ended the command with a traceback."""
    for name in ("a_$^$", "b|c"):
        make_arm(tmp_path / "runs" / name[0], SPEEDS, tensorboard_dir=f"/{name}")
    for path in tmp_path.glob("runs/*/*/result.json"):
        result = json.loads(path.read_text())
        result["final"]["eval_p|r"] = 0.5
        path.write_text(json.dumps(result))
    assert compare(tmp_path, str(tmp_path / "runs"), has_charts=True) == 0
    assert "a_$^$<" in (tmp_path / "out" / "report.html").read_text("utf-8")
    text = (tmp_path / "out" / "report.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 4
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1


def test_no_command_makes_tensorboard_read_a_whole_disk(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = make_arm(tmp_path / "one", SPEEDS)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        two = make_arm(pathlib.Path(other) / "two", SPEEDS, strategy="tower")
        assert compare(tmp_path, one, two) == 0
    assert concluded(tmp_path)["tensorboard"] == ""
    assert "logdir" not in (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "logdir" not in capsys.readouterr().out


def test_the_control_is_the_arm_on_one_device_not_the_model_in_stages(
    tmp_path: pathlib.Path,
) -> None:
    stages = make_arm(tmp_path / "stages", SPEEDS, strategy="model_parallel")
    one = make_arm(tmp_path / "one", SPEEDS)
    assert compare(tmp_path, stages, one) == 0
    assert concluded(tmp_path)["control"] == "one"


def test_efficiency_is_speed_over_that_of_as_many_single_devices(
    tmp_path: pathlib.Path,
) -> None:
    one = make_arm(tmp_path / "one", SPEEDS)
    two = make_arm(tmp_path / "two", scaled(1.5), strategy="tower")
    assert compare(tmp_path, one, two) == 0
    efficiencies = [arm["scaling_efficiency"] for arm in concluded(tmp_path)["arms"]]
    # Made runs of tower have 2 replicas.
    assert efficiencies == pytest.approx([1.0, 0.75])


def test_time_to_a_target_is_that_of_the_first_evaluation_above_it(
    tmp_path: pathlib.Path,
) -> None:
    one = make_arm(tmp_path / "one", SPEEDS)
    two = make_arm(tmp_path / "two", SPEEDS, (0.6,) * 5, strategy="tower")
    assert (
        compare(tmp_path, one, two, flags=("--set=comparison.target_accuracy=0.4",))
        == 0
    )
    means = [arm["means"] for arm in concluded(tmp_path)["arms"]]
    seconds = [mean["seconds_to_target_accuracy"] for mean in means]
    # Made runs have half their accuracy after 0.5 s of tracing and 0.4 of training.
    assert seconds == pytest.approx([0.9, 1.5])


@pytest.mark.parametrize("how", ["restarts", "continued", "resumed"])
def test_times_of_a_run_that_was_interrupted_are_left_out(
    tmp_path: pathlib.Path, how: str
) -> None:
    """A process counts its seconds from zero, and reaches the target later on."""
    measured = {"wall_seconds": 9.0, "peak_memory_mib": 800.0}
    one = make_arm(tmp_path / "one", SPEEDS, measured=measured)
    two = make_arm(tmp_path / "two", SPEEDS, strategy="tower", measured=measured)
    path = tmp_path / "two" / "seed-3"
    if how != "resumed":
        result = json.loads((path / "result.json").read_text())
        (path / "result.json").write_text(json.dumps({**result, how: 1}))
    else:
        rows = (path / "metrics.jsonl").read_text()
        rows = rows.replace('"train": 1.0', '"train": 0.3')
        (path / "metrics.jsonl").write_text(rows)
    target = ("--set=comparison.target_accuracy=0.6",)
    assert compare(tmp_path, one, two, flags=target, has_charts=True) == 0
    conclusion = concluded(tmp_path)
    (figures,) = (
        run["figures"] for run in conclusion["arms"][1]["runs"] if run["seed"] == 3
    )
    for name in ("seconds_to_target_accuracy", "train_seconds", "wall_seconds"):
        assert figures[name] is None
    assert figures["examples_per_second"] == SPEEDS[3]
    remarks = [remark for remark in conclusion["remarks"] if "seed 3" in remark]
    assert remarks == [
        "two with seed 3 was interrupted and continued: its speed is that of its last "
        "process, and it has no times of the whole run."
    ]
    # It reached the target, at a time that nobody has measured.
    assert not any("reached the target" in r for r in conclusion["remarks"])


def test_curves_are_read_from_lines_that_share_a_step(tmp_path: pathlib.Path) -> None:
    run = read_run(make_run(tmp_path / "run", seed=0), arm="arm", seed=0)
    assert run.curve("train_loss") == {10: 0.1, 20: 0.05}
    assert run.curve("eval_accuracy") == {10: 0.45, 20: 0.9}


def test_an_arm_that_failed_is_reported_beside_the_others(
    tmp_path: pathlib.Path,
) -> None:
    one = make_arm(tmp_path / "one", SPEEDS)
    two = make_arm(tmp_path / "two", scaled(2.0), strategy="tower")
    wild = make_arm(tmp_path / "wild", SPEEDS, status="diverged", learning_rate=9.0)
    assert compare(tmp_path, one, two, wild, has_charts=True) == 3
    conclusion = concluded(tmp_path)
    assert [arm["num_completed"] for arm in conclusion["arms"]] == [5, 5, 0]
    words = [
        (c["arm"], c["verdict"]["words"])
        for c in conclusion["comparisons"]
        if c["metric"] == "examples_per_second"
    ]
    assert words[0][1].startswith("faster by 2.0x")
    assert words[1] == ("wild", "unknown: no run of this arm completed")
    assert sum("wild with seed" in remark for remark in conclusion["remarks"]) == 5


@pytest.mark.parametrize(
    ("name", "content"),
    [
        further("result.json", None),
        ("result.json", b'{"schema_version": 1, "status": "compl'),
        ("result.json", b'{"status": "completed"}'),
        further("result.json", b"\xff\xfe"),
        ("metrics.jsonl", b'{"step": 10, "train_loss": 0.1}\n{"step": 20, "tra'),
        ("metrics.jsonl", b'{"step": 10, "seconds": 3, "step_milliseconds": []}\n'),
        further("metrics.jsonl", None),
        ("measured.json", b"[]"),
    ],
)
def test_a_damaged_run_costs_no_more_than_itself(
    tmp_path: pathlib.Path, name: str, content: bytes | None
) -> None:
    one = make_arm(tmp_path / "one", SPEEDS)
    two = make_arm(tmp_path / "two", scaled(2.0), strategy="tower")
    path = tmp_path / "two" / "seed-3" / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert compare(tmp_path, one, two, has_charts=True) == 0
    conclusion = concluded(tmp_path)
    lost = name == "result.json"
    assert conclusion["arms"][1]["num_completed"] == 5 - lost
    assert any("two with seed 3: failed" in r for r in conclusion["remarks"]) == lost
    assert verdict_of(tmp_path).startswith("faster by 2.0")


def test_runs_that_went_back_and_metrics_that_are_missing_are_remarked_upon(
    tmp_path: pathlib.Path,
) -> None:
    one = make_arm(tmp_path / "one", SPEEDS)
    two = make_arm(tmp_path / "two", SPEEDS, strategy="tower")
    for seed, change in {
        1: {"rollbacks": 2},
        2: {"final": {"eval_accuracy": 0.9, "eval_loss": None, "train_loss": 0.3}},
        4: {"final": {"eval_accuracy": 0.9, "train_loss": 0.3}, "rollbacks": 1},
    }.items():
        path = tmp_path / "two" / f"seed-{seed}" / "result.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert compare(tmp_path, one, two) == 0
    back, again, missing = concluded(tmp_path)["remarks"]
    assert back.startswith("two with seed 1 went back to a checkpoint 2 times, ")
    assert again.startswith("two with seed 4 went back to a checkpoint 1 time, ")
    assert missing.startswith("two has no eval_loss with seeds 2, 4: ")


def test_a_busy_machine_is_remarked_upon(tmp_path: pathlib.Path) -> None:
    busy = {"other_busy_cores": 1.5, "wall_seconds": 9.0, "peak_memory_mib": 800.0}
    one = make_arm(tmp_path / "one", SPEEDS, measured=busy)
    two = make_arm(tmp_path / "two", SPEEDS, strategy="tower")
    assert compare(tmp_path, one, two) == 0
    remarks = concluded(tmp_path)["remarks"]
    assert any("5 of 10 runs other programs" in remark for remark in remarks)


def test_what_is_held_fixed_is_refused_or_said_at_the_top(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = make_arm(tmp_path / "one", SPEEDS)
    two = make_arm(tmp_path / "two", SPEEDS, global_batch_size=32)
    before = contents(tmp_path)
    assert compare(tmp_path, one, two) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "the global batch: --global_batch_size=64 (one) and " in error
    assert "--global_batch_size=32 (two)" in error
    assert contents(tmp_path) == before
    allowed = ("--set=comparison.allow_different=global_batch_size",)
    assert compare(tmp_path, one, two, flags=allowed) == 0
    assert "differ in the global batch" in concluded(tmp_path)["remarks"][0]
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert page.index("differ in the global batch") < page.index("Verdicts")


def test_a_setting_may_have_no_effect_on_an_arm(tmp_path: pathlib.Path) -> None:
    arms = [make_arm(tmp_path / "one", SPEEDS)]
    for name, rate in (("slow", 100.0), ("fast", 1000.0)):
        arm = make_arm(
            tmp_path / name,
            SPEEDS,
            strategy="multi_worker_mirrored",
            num_workers=2,
            emulated_bandwidth_mbit=rate,
        )
        arms.append(arm)
    allowed = ("--set=comparison.allow_different=emulated_bandwidth_mbit",)
    assert compare(tmp_path, *arms, flags=allowed) == 0
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    row = "emulated_bandwidth_mbit</td><td>-</td><td>100</td><td>1000</td>"
    assert row in page


def test_what_is_equal_in_all_seeds_needs_no_difference(tmp_path: pathlib.Path) -> None:
    arms = (
        make_arm(tmp_path / "one", SPEEDS),
        make_arm(tmp_path / "two", scaled(1.8), strategy="tower"),
    )
    assert compare(tmp_path, *arms) == 0
    assert verdict_of(tmp_path, "peak_memory_mib") == "memory equal in all 5 seeds"


def test_a_difference_of_losses_may_be_large(tmp_path: pathlib.Path) -> None:
    arms = (
        make_arm(tmp_path / "one", SPEEDS),
        make_arm(tmp_path / "two", SPEEDS, strategy="tower"),
    )
    for path in (tmp_path / "two").glob("*/result.json"):
        result = json.loads(path.read_text("utf-8"))
        # As of squared errors of prices.
        result["final"]["eval_loss"] = 5000.4
        path.write_text(json.dumps(result), "utf-8")
    assert compare(tmp_path, *arms) == 0
    (loss,) = (
        c for c in concluded(tmp_path)["comparisons"] if c["metric"] == "eval_loss"
    )
    assert loss["estimate"] == pytest.approx(5000)


def test_a_model_without_accuracy_has_no_verdict_on_it(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = (
        make_arm(tmp_path / "one", SPEEDS),
        make_arm(tmp_path / "two", scaled(1.8), strategy="tower"),
    )
    for path in tmp_path.glob("*/*/result.json"):
        result = json.loads(path.read_text("utf-8"))
        result["final"]["eval_accuracy"] = None
        path.write_text(json.dumps(result), "utf-8")
        (path.parent / "metrics.jsonl").write_text("")
    assert compare(tmp_path, *arms, has_charts=True) == 0
    printed = capsys.readouterr().out
    assert re.findall("^verdict .*", printed, re.M) == [
        "verdict   two: faster by 1.8000x (1.8000 to 1.8000)"
    ]
    assert verdict_of(tmp_path, "eval_accuracy") == (
        "unknown: accuracy was not measured in both arms with the same seed"
    )


def test_runs_that_do_not_reach_the_target_are_said_to_be_left_out(
    tmp_path: pathlib.Path,
) -> None:
    one = make_arm(tmp_path / "one", SPEEDS)
    accuracies = (0.9, 0.9, 0.9, 0.3, 0.3)
    two = make_arm(tmp_path / "two", SPEEDS, accuracies, strategy="tower")
    target = ("--set=comparison.target_accuracy=0.4",)
    assert compare(tmp_path, one, two, flags=target) == 0
    (remark,) = (r for r in concluded(tmp_path)["remarks"] if "target" in r)
    assert remark == (
        "two reached the target accuracy 0.4 in 3 of 5 runs; times to it are compared "
        "in these seeds alone."
    )


def test_a_target_without_accuracy_is_no_failure_of_an_arm(
    tmp_path: pathlib.Path,
) -> None:
    one = make_arm(tmp_path / "one", SPEEDS)
    two = make_arm(tmp_path / "two", SPEEDS, strategy="tower")
    for path in tmp_path.glob("*/*/result.json"):
        result = json.loads(path.read_text("utf-8"))
        result["final"] |= {"eval_accuracy": None, "eval_binary_accuracy": 0.99}
        path.write_text(json.dumps(result), "utf-8")
        (path.parent / "metrics.jsonl").write_text("")
    target = ("--set=comparison.target_accuracy=0.9",)
    assert compare(tmp_path, one, two, flags=target) == 0
    (remark,) = (r for r in concluded(tmp_path)["remarks"] if "target" in r)
    assert "no run has eval_accuracy" in remark
    assert "eval_binary_accuracy" in remark
    assert "0 of" not in remark


def test_what_a_program_decides_is_not_what_is_given(
    tmp_path: pathlib.Path,
) -> None:
    program = tmp_path / "program.py"
    program.write_text("")
    for name, given in (("its", []), ("given", ["learning_rate"])):
        make_arm(tmp_path / name, SPEEDS, script=str(program))
        for path in (tmp_path / name).glob("*/config.json"):
            settings = json.loads(path.read_text("utf-8"))
            settings["given"] = ["script", *given]
            path.write_text(json.dumps(settings), "utf-8")
    assert compare(tmp_path, str(tmp_path / "its"), str(tmp_path / "given")) == 0
    its, given_arm = (arm["name"] for arm in concluded(tmp_path)["arms"])
    assert its == "one_device learning_rate=the program's"
    assert given_arm == "one_device learning_rate=0.001"


def test_finished_runs_do_not_replace_the_plan_of_a_comparison(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = (
        make_arm(tmp_path / "one", SPEEDS),
        make_arm(tmp_path / "two", SPEEDS, strategy="tower"),
    )
    (tmp_path / "first").mkdir()
    assert compare(tmp_path / "first", *arms) == 0
    plan = json.loads((tmp_path / "first" / "out" / "plan.json").read_text("utf-8"))
    # As a comparison that runs its arms writes it.
    plan["looks"] = [[5, 5]]
    path = tmp_path / "out" / "plan.json"
    path.parent.mkdir()
    path.write_text(json.dumps(plan), "utf-8")
    assert compare(tmp_path, *arms) == 2
    assert "holds another comparison, without --runs" in capsys.readouterr().err
    assert json.loads(path.read_text("utf-8")) == plan


def test_of_a_comparison_only_the_compared_runs_are_read(
    tmp_path: pathlib.Path,
) -> None:
    before = tmp_path / "before"
    make_arm(before / "runs" / "one_device", SPEEDS)
    make_arm(before / "runs" / "tower", SPEEDS, strategy="tower")
    for name in ("one_device", "tower"):
        make_run(before / "warm_up" / name, seed=0, strategy=name, train_steps=10)
    searched = before / "tuning" / "tower" / "10-steps" / "0.1"
    make_run(searched, seed=99, strategy="tower", learning_rate=0.1)
    (before / "plan.json").write_text("{}")
    assert compare(tmp_path, str(before)) == 0
    arms = concluded(tmp_path)["arms"]
    assert [arm["name"] for arm in arms] == ["one_device", "tower"]
    assert [len(arm["runs"]) for arm in arms] == [5, 5]


@pytest.mark.parametrize(
    ("beginning", "words"),
    [
        ("initial_weights", ("the initial weights", "runs of the same code")),
        ("first_examples", ("the first examples", "of the program's data a seed")),
    ],
)
def test_another_beginning_is_refused_or_said_at_the_top(
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    beginning: str,
    words: tuple[str, str],
) -> None:
    settings: dict[str, Any] = {f"{beginning}_sha256": "2" * 64}
    one = make_arm(tmp_path / "one", SPEEDS, **settings)
    settings = {f"{beginning}_sha256": "1" * 64}
    two = make_arm(tmp_path / "two", SPEEDS, strategy="tower", **settings)
    assert compare(tmp_path, one, two) == 2
    error = capsys.readouterr().err
    assert "with seed 0 one and two began with different" in error
    assert all(word in error for word in words), error
    assert not (tmp_path / "out").exists()
    allowed = (f"--set=comparison.allow_different={beginning}",)
    assert compare(tmp_path, one, two, flags=allowed) == 0
    assert concluded(tmp_path)["remarks"][0].startswith(f"Arms differ in {words[0]}")


def test_other_files_of_initial_weights_are_remarked_on_once(
    tmp_path: pathlib.Path,
) -> None:
    arms = [
        make_arm(
            tmp_path / name,
            SPEEDS,
            initial_weights=f"{name}.keras",
            initial_weights_sha256=digit * 64,
        )
        for name, digit in (("one", "1"), ("two", "2"))
    ]
    allowed = ("--set=comparison.allow_different=initial_weights",)
    assert compare(tmp_path, *arms, flags=allowed) == 0
    remarks = [r for r in concluded(tmp_path)["remarks"] if "Arms differ" in r]
    assert len(remarks) == 1
    assert "initial_weights is one: one.keras, two: two.keras" in remarks[0]


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda f: "nowhere", "--runs=nowhere is neither"),
        (lambda f: make_arm(f / "one", SPEEDS), "only one arm, 'one'"),
        (
            lambda f: (
                f"{make_arm(f / 'one', SPEEDS)},{make_arm(f / 'o', SPEEDS)[2:]}"
                f",{f / 'one'}"
            ),
            "two runs of one_device with seed 0",
        ),
        (lambda f: f"a b:{make_run(f / 'x', seed=0)}", "the name 'a b'"),
    ],
)
def test_folders_that_cannot_be_compared_are_refused(
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    make: Any,
    named: str,
) -> None:
    assert compare(tmp_path, make(tmp_path)) == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_default_length_is_as_long_as_the_same_number_of_steps(
    tmp_path: pathlib.Path,
) -> None:
    arms = (
        make_arm(tmp_path / "one", SPEEDS, train_steps=1000),
        make_arm(tmp_path / "two", SPEEDS, strategy="tower", train_steps=None),
    )
    assert compare(tmp_path, *arms) == 0


def test_the_result_is_not_written_over_something_else(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = (
        make_arm(tmp_path / "one", SPEEDS),
        make_arm(tmp_path / "two", SPEEDS, strategy="tower"),
    )
    make_run(tmp_path / "out", seed=0)
    before = contents(tmp_path / "out")
    assert compare(tmp_path, *arms) == 2
    assert "holds files that are not a comparison" in capsys.readouterr().err
    assert contents(tmp_path / "out") == before
