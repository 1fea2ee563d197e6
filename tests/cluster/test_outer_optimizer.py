"""Tests of workers that average changes of weights with an outer optimizer."""

import pathlib

import pytest

from tests import processes
from tests.cluster.test_averaged_parameters import (
    SMALL,
    WEIGHT_BYTES,
    WORKERS,
    assert_same_training,
    variables_of,
)
from tests.processes import result_of, train

pytestmark = pytest.mark.cluster

NESTEROV = (
    "--optimizer=momentum",
    "--dropout=0.3",
    "--sync_every_steps=5",
    "--outer_optimizer=nesterov",
    "--outer_fragments=2",
    "--eval_every_steps=9",
    "--train_steps=23",
)


def test_workers_do_what_replicas_of_one_process_do(tmp_path: pathlib.Path) -> None:
    """The workers end between two averages. NumPy has checked the one process."""
    one, run = tmp_path / "one", tmp_path / "run"
    one_process = ("--strategy=parameter_averaging", "--num_replicas=2")
    train(one, *one_process, *SMALL, *NESTEROV)
    result = train(run, *WORKERS, "--num_workers=2", *SMALL, *NESTEROV)
    # A kernel has an anchor and an outer momentum, in addition to copies and momenta.
    kept = variables_of(run, 23, "replicas").values()
    assert len([values for values in kept if values.shape == (8, 10)]) == 2
    assert len([values for values in kept if values.shape == (2, 8, 10)]) == 2
    # The bound of adam in double precision, because sums have another order.
    assert_same_training(run, one, 23, 1e-10)
    assert result["examples_seen"] == result_of(one)["examples_seen"]
    # The kernel of the hidden layer is the first fragment, all others are the second.
    largest = 8 * 64 * 8
    assert result["communication"] == {
        "algorithm": "ring all-reduce of changes of weights, as_is, every 5 steps "
        f"in 2 fragments of at most {largest:,} bytes",
        "bytes_per_step_per_replica": round(WEIGHT_BYTES / 5),
    }


# tests/conformance/test_outer_optimizer.py has one process that continues, and
# test_gradient_compression.py workers that continue with what each of them kept.
@pytest.mark.exhaustive
def test_workers_that_stop_between_two_averages_go_on(tmp_path: pathlib.Path) -> None:
    one, run = tmp_path / "one", tmp_path / "run"
    workers = (*WORKERS, "--num_workers=2", *SMALL, *NESTEROV)
    train(one, *workers)
    train(run, *workers, "--train_steps=8")
    train(run, *workers, "--resume=auto", "--steps_per_loop=2")
    assert result_of(run)["weights_sha256"] == result_of(one)["weights_sha256"]


@pytest.mark.exhaustive
def test_sgd_of_rate_1_after_every_step_is_one_device(tmp_path: pathlib.Path) -> None:
    flags = (*SMALL, "--optimizer=sgd", "--train_steps=20", "--eval_every_steps=7")
    train(tmp_path / "one", *flags)
    outer = ("--sync_every_steps=1", "--outer_optimizer=sgd", "--outer_learning_rate=1")
    train(tmp_path / "run", *WORKERS, "--num_workers=3", *outer, *flags)
    assert_same_training(tmp_path / "run", tmp_path / "one", 20, 1e-12)


@pytest.mark.exhaustive
def test_narrow_types_send_half_the_bytes_or_less(tmp_path: pathlib.Path) -> None:
    """Rounding to bfloat16 loses half of the last bit of each change, 2^-9."""
    flags = (
        *(flag for flag in SMALL if not flag.startswith("--dtype")),
        *("--optimizer=sgd", "--sync_every_steps=1", "--outer_optimizer=sgd"),
        *("--train_steps=20", "--num_workers=2", *WORKERS),
    )
    exact = train(tmp_path / "exact", *flags)
    narrow = train(tmp_path / "narrow", *flags, "--outer_dtype=bfloat16")
    sent = "bytes_per_step_per_replica"
    assert 2 * narrow["communication"][sent] == exact["communication"][sent]
    assert narrow["weights_sha256"] != exact["weights_sha256"]
    # 20 changes have each a relative error of at most 2^-8, from two roundings. The
    # loss, which fell by a multiple of this, differs by less than a hundredth.
    assert narrow["final"]["eval_loss"] == pytest.approx(
        exact["final"]["eval_loss"], rel=0.01
    )


def test_more_fragments_than_variables_are_one_line() -> None:
    done = processes.run(
        *WORKERS,
        *("--model=mlp", "--hidden_units=8", "--num_workers=2"),
        *("--outer_optimizer=sgd", "--outer_fragments=5"),
    )
    assert done.returncode == 2
    (line,) = [row for row in done.stderr.splitlines() if "error: " in row]
    assert "--outer_fragments=5 is more than the 4 variables" in line
