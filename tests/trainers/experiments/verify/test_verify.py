"""--mode=verify on the project as it is, and what it refuses."""

import json
import pathlib
from typing import Any

import jsonschema
import pytest

from tests import processes
from tests.markers import further
from tests.trainers.experiments.verify.mutated_projects import (
    SMALL,
    Fault,
    plant,
    verify,
)
from trainers.config.config import Config
from trainers.experiments.verify.arms import reference_of, subjects_of

SCHEMA = json.loads((processes.ROOT / "docs/verify.schema.json").read_text("utf-8"))


def entries(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    jsonschema.validate(found, SCHEMA)
    return {entry["name"]: entry for entry in found["strategies"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategies", "names"),
    [
        ("tower", {"tower-sync", "tower-async"}),
        further(
            "one_device,tower,mirrored,model_parallel,parameter_averaging",
            {
                *("one_device", "tower-sync", "tower-async", "mirrored"),
                *("model_parallel", "parameter_averaging"),
            },
        ),
    ],
    ids=["tower", "all"],
)
def test_strategies_of_one_process_train_the_same(
    strategies: str, names: set[str], tmp_path: pathlib.Path
) -> None:
    """Trains in single precision, with all features of the same training at once.

    Strategies that train differently by intention take part and are named.
    """
    flags = ("--model=mlp", "--hidden_units=8", "--train_steps=5")
    features = (
        "--clip_global_norm=0.5",
        "--dropout=0.5",
        "--set=model.replayable_random_numbers=true",
    )
    # 1,437 examples to train: the third batch of 479 ends an epoch.
    uneven = ("--global_batch_size=499", "--weight_decay=0.01", "--optimizer=adamw")
    listed = f"--strategies={strategies}"
    done, found = verify(tmp_path, listed, *flags, *features, *uneven)
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = {name: entry["verdict"] for name, entry in entries(found).items()}
    assert set(verdicts) == names
    assert verdicts.get("one_device", "identical") == "identical"
    different = {"tower-async", "parameter_averaging"}
    for name, verdict in verdicts.items():
        if name in different:
            assert verdict == "not comparable"
        else:
            assert verdict in ("identical", "equivalent")
    asynchronous = entries(found)["tower-async"]
    assert asynchronous["staleness"]["max"] >= 0
    assert "(updates in between: mean " in done.stdout
    words = "change copies of the weights of their own"
    assert (words in done.stdout) == ("parameter_averaging" in names)
    assert found["steps"] == 5
    # 4 sqrt(4 x 499 + 439) 2^-23, which a wrong factor exceeds by far.
    assert found["tolerance"]["last_step"] == pytest.approx(2.353e-5, rel=0.001)
    assert "tolerance 2.4e-05 at step 5" in done.stdout


def test_the_reference_takes_whole_batches_and_strategies_what_suits_them() -> None:
    config = Config().replace(
        mode="verify",
        strategies=("tower", "model_parallel"),
        strategy="model_parallel",
        pipeline_stages=("logits",),
        num_microbatches=5,
        gradient_accumulation_steps=2,
    )
    tower, _, pipeline = (arm.config.strategy for arm in subjects_of(config))
    assert (tower.pipeline_stages, tower.num_microbatches) == (None, None)
    assert (pipeline.pipeline_stages, pipeline.num_microbatches) == (("logits",), 5)
    assert tower.gradient_accumulation_steps == 2
    assert pipeline.gradient_accumulation_steps == 2
    assert reference_of(config).config.strategy.gradient_accumulation_steps == 1


# Verdicts are those of towers, which wait for each other or not.
@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "others", [(), ("multi_worker_mirrored",)], ids=["servers", "all"]
)
def test_strategies_of_several_processes(
    others: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    """Two workers that wait for each other, and two that do not, in one command."""
    strategies = ",".join([*others, "parameter_server"])
    done, found = verify(tmp_path, f"--strategies={strategies}", *SMALL)
    assert done.returncode == 0, done.stdout + done.stderr
    by_name = entries(found)
    servers = ["parameter_server-sync", "parameter_server-async"]
    assert list(by_name) == [*others, *servers]
    synchronous = [entry for entry in by_name.values() if entry["synchronous"]]
    assert len(synchronous) == 1 + len(others)
    for entry in synchronous:
        assert entry["verdict"] in ("identical", "equivalent")
    asynchronous = by_name["parameter_server-async"]
    assert asynchronous["verdict"] == "not comparable"
    assert asynchronous["staleness"]["max"] >= 0
    assert "updates in between: mean " in done.stdout


# test_reasons.py has the reason.
@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "flags",
    [
        ("--strategies=multi_worker_mirrored",),
        ("--strategies=parameter_server", "--update=sync"),
    ],
    ids=["workers", "servers"],
)
def test_compressed_gradients_are_why_nothing_is_compared(
    flags: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    compressed = ("--gradient_compression=int8", "--hidden_units=64")
    done, found = verify(tmp_path, *flags, *SMALL, *compressed)
    assert done.returncode == 0, done.stdout + done.stderr
    for name, entry in entries(found).items():
        assert entry["verdict"] == "not comparable"
        assert f"{name}: --gradient_compression=int8 sums " in done.stdout


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.exhaustive
def test_one_asynchronous_worker_is_comparable(tmp_path: pathlib.Path) -> None:
    flags = ("--strategies=parameter_server", "--update=async", "--num_workers=1")
    done, found = verify(tmp_path, *flags, *SMALL)
    assert done.returncode == 0, done.stdout + done.stderr
    (entry,) = entries(found).values()
    assert entry["name"] == "parameter_server"
    assert entry["verdict"] in ("identical", "equivalent")


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.exhaustive
def test_narrow_numbers_on_the_wire_are_named(tmp_path: pathlib.Path) -> None:
    """No fault: what was asked for is no longer exactly the same training."""
    flags = ("--strategies=multi_worker_mirrored", "--all_reduce_dtype=bfloat16")
    done, found = verify(tmp_path, *flags, *SMALL)
    assert done.returncode == 4, done.stdout + done.stderr
    (entry,) = entries(found).values()
    likely = entry["cause"]["likely"]
    assert (
        "goes away without --all_reduce_dtype=bfloat16: gradients are rounded" in likely
    )


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_strategy_that_crashes_does_not_hide_the_others(
    tmp_path: pathlib.Path,
) -> None:
    fault = Fault(
        file="strategies/tower.py",
        right="        return StepChunks(batches.spans(0, 1))",
        wrong='        raise RuntimeError("no power")',
    )
    plant(tmp_path, fault)
    done, found = verify(tmp_path, "--strategies=tower,mirrored", *SMALL)
    assert done.returncode == 1
    by_name = entries(found)
    failed = by_name["tower-sync"]
    assert failed["verdict"] == "failed"
    assert failed["reason"].startswith("RuntimeError: no power")
    assert "tower-sync: failed: RuntimeError: no power" in done.stdout
    assert by_name["tower-async"]["verdict"] == "not comparable"
    assert by_name["mirrored"]["verdict"] in ("identical", "equivalent")


def test_divergence_leaves_nothing_to_compare(tmp_path: pathlib.Path) -> None:
    done = processes.run(
        *("--mode=verify", "--run_dir=verified", "--strategies=one_device", *SMALL),
        *("--optimizer=sgd", "--learning_rate=1e38", "--dtype=float32"),
        folder=tmp_path,
    )
    assert done.returncode == 3
    assert "one_device, which all are compared with, diverged: " in done.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "--mode=verify needs something to verify: give --strategies"),
        (
            ("--strategies=tower", "--arm=four: --num_replicas=4"),
            "--arm=four: --num_replicas=4 is not used by --mode=verify",
        ),
        (
            ("--strategies=tower", "--train_steps=2", "--data_path=no/such"),
            "--data_path=no/such is not read by --dataset=digits",
        ),
    ],
)
def test_refusals(flags: tuple[str, ...], words: str, tmp_path: pathlib.Path) -> None:
    done = processes.run("--mode=verify", *flags, folder=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_one_device_refuses_leaves_nothing(tmp_path: pathlib.Path) -> None:
    flags = ("--strategies=tower", "--dataset=tfrecord", "--data_path=absent.tfrecord")
    done = processes.run("--mode=verify", "--run_dir=verified", *flags, folder=tmp_path)
    assert done.returncode == 2
    assert "absent.tfrecord" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    done = processes.run(
        "--mode=verify", "--run_dir=.", "--strategies=tower", folder=tmp_path
    )
    assert done.returncode == 2
    assert "is not empty: choose a new or empty folder" in done.stderr
