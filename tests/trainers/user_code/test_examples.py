"""Models, data and steps of one's own, through the real entry point."""

import difflib
import pathlib

import pytest

from strategies import registry
from tests.processes import ROOT, run, run_module, train
from tests.trainers.experiments.verify.mutated_projects import verify

EXAMPLES = {
    "text_classifier": ("model", "reviews"),
    "multi_output": ("model", "digits"),
    "moved_from_fit": ("model", "digits"),
}
SAME = [
    name
    for name in registry.names()
    if registry.traits(name).matches_one_device and name != "one_device"
]


def flags_of(example: str) -> list[str]:
    model, dataset = EXAMPLES[example]
    found = [f"--model=examples.{example}:{model}"]
    return found + [f"--dataset=examples.{example}:{dataset}"] * (dataset is not None)


# The last tests train with two of the examples, and test_outside.py verifies a model.
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("example", "strategies"),
    [
        ("text_classifier", "parameter_server"),
        ("text_classifier", "tower"),
        ("multi_output", "mirrored"),
        ("multi_output", "parameter_server"),
        ("text_classifier", ",".join(SAME)),
        ("multi_output", "tower,multi_worker_mirrored"),
        ("moved_from_fit", ",".join(SAME)),
    ],
)
def test_an_example_trains_the_same_under_each_strategy(
    example: str, strategies: str, tmp_path: pathlib.Path
) -> None:
    # What the dropout of an example draws does not depend on who computes it then.
    extra = {
        "moved_from_fit": ["--set=model.replayable_random_numbers=true"],
        # Gradients of tables of words and places, where single precision hides a lot.
        "text_classifier": ["--dtype=float64"],
    }
    done, found = verify(
        tmp_path,
        f"--strategies={strategies}",
        *("--train_steps=6", "--jit_compile=off"),
        *flags_of(example),
        *extra.get(example, ()),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = {entry["name"]: entry["verdict"] for entry in found["strategies"]}
    for strategy in strategies.split(","):
        own = [v for name, v in verdicts.items() if name.startswith(strategy)]
        assert {"identical", "equivalent"} & set(own), verdicts
        assert set(own) <= {"identical", "equivalent", "not comparable"}


@pytest.mark.exhaustive
def test_a_loss_of_ones_own_trains_as_with_fit(tmp_path: pathlib.Path) -> None:
    done, found = verify(
        tmp_path,
        f"--script={ROOT / 'examples' / 'consistent_digits.py'}",
        *("--strategies=mirrored", "--num_replicas=3", "--train_steps=6"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = {entry["verdict"] for entry in found["strategies"]}
    assert verdicts <= {"identical", "equivalent"}


def code_of(example: str) -> list[str]:
    """Returns the lines from the imports on, without indentation and empty lines."""
    text = (ROOT / "examples" / f"{example}.py").read_text(encoding="utf-8")
    code = text[text.index("import keras") :]
    return [line.strip() for line in code.splitlines() if line.strip()]


def test_a_script_with_fit_moves_here_by_ten_lines() -> None:
    before, after = map(code_of, ("plain_fit", "moved_from_fit"))
    added = [line for line in difflib.ndiff(before, after) if line.startswith("+ ")]
    assert 0 < len(added) <= 10, added


def test_both_scripts_run(tmp_path: pathlib.Path) -> None:
    script = f"--script={ROOT / 'examples' / 'plain_fit.py'}"
    few = ("--strategy=one_device", "--train_steps=5", "--jit_compile=off")
    assert train(tmp_path / "fit", script, *few)["steps"] == 5
    moved = train(tmp_path / "moved", *flags_of("moved_from_fit"), *few)
    assert moved["steps"] == 5


# The default run, in ../modes/test_train.py, learns from the same digits.
@pytest.mark.exhaustive
def test_the_moved_script_learns_what_fit_learns(tmp_path: pathlib.Path) -> None:
    fitted = run_module("examples.plain_fit", folder=tmp_path)
    assert fitted.returncode == 0, fitted.stderr
    accuracy = float(fitted.stdout.rpartition("val_accuracy: ")[2].split()[0])
    result = train(
        tmp_path / "run",
        *flags_of("moved_from_fit"),
        *("--strategy=mirrored", "--epochs=20", "--learning_rate=0.003"),
    )
    # Of the same 450 held-out examples; of 450 one standard deviation is 0.8 points.
    assert accuracy > 0.9
    assert result["final"]["eval_accuracy"] == pytest.approx(accuracy, abs=0.04)


def test_a_run_is_evaluated_with_the_functions_that_flags_name(
    tmp_path: pathlib.Path,
) -> None:
    flags = flags_of("multi_output")
    train(tmp_path / "run", *flags, "--train_steps=5", "--jit_compile=off")
    place = ["--mode=evaluate", f"--run_dir={tmp_path / 'run'}"]
    done = run(*place, *flags)
    assert done.returncode == 0, done.stderr
    assert "digit_accuracy" in done.stdout
    refused = run(*place)
    assert refused.returncode == 2
    assert "names functions to run, which only flags may: add " in refused.stderr
    assert all(flag in refused.stderr for flag in flags)
