"""A scenario of eleven kinds of damage to the newest checkpoint."""

import pathlib
import random
import shutil
from collections.abc import Callable

from tests import processes
from tests.fault_injection.continuation import SMALL, undisturbed_weights
from tests.fault_injection.scenario import Scenario

FLAGS = (
    *(*SMALL, "--train_steps=60", "--checkpoint_every_steps=20"),
    *processes.NO_EVALUATION,
)
NEWEST, BEFORE = "step-00000060", "step-00000040"
DATA, INDEX = "variables.data-00000-of-00001", "variables.index"
COMMIT = "commit.json"

Damage = Callable[[pathlib.Path, random.Random], None]


def _file(checkpoint: pathlib.Path, name: str) -> pathlib.Path:
    """Returns a file of a checkpoint; of several data files the first.

    A run with parameter servers has a data file for each server.
    """
    return (
        min(checkpoint.glob("variables.data-*")) if name == DATA else checkpoint / name
    )


def _cut_off(name: str) -> Damage:
    def damage(newest: pathlib.Path, chosen: random.Random) -> None:
        path = _file(newest, name)
        content = path.read_bytes()
        path.write_bytes(content[: chosen.randrange(len(content))])

    return damage


def _one_bit(name: str) -> Damage:
    def damage(newest: pathlib.Path, chosen: random.Random) -> None:
        path = _file(newest, name)
        content = bytearray(path.read_bytes())
        content[chosen.randrange(len(content))] ^= 1 << chosen.randrange(8)
        path.write_bytes(content)

    return damage


def _missing(name: str) -> Damage:
    return lambda newest, _: _file(newest, name).unlink()


def _older_data(newest: pathlib.Path, chosen: random.Random) -> None:
    shutil.copy(newest.parent / BEFORE / DATA, newest / DATA)


def _empty_folder(newest: pathlib.Path, chosen: random.Random) -> None:
    shutil.rmtree(newest)
    newest.mkdir()


KINDS: dict[str, Damage] = {
    **{f"{name} cut off": _cut_off(name) for name in (DATA, INDEX, COMMIT)},
    **{f"a bit of {name}": _one_bit(name) for name in (DATA, INDEX, COMMIT)},
    **{f"{name} missing": _missing(name) for name in (DATA, INDEX, COMMIT)},
    "data of the one before": _older_data,
    "an empty folder": _empty_folder,
}


def assert_falls_back(
    kind: str,
    trained: pathlib.Path,
    run: pathlib.Path,
    chosen: random.Random,
    resume: Callable[..., tuple[int, str, str]],
) -> None:
    """Damages a copy of a run, which then continues from the checkpoint before.

    Args:
      kind: Key of `KINDS`.
      trained: Folder of a run with `FLAGS`, which is not changed.
      run: Folder for the copy.
      chosen: Generator that draws the place of the damage.
      resume: Function that runs the program with some flags, and returns its exit code,
        standard output and standard error.
    """
    shutil.copytree(trained, run)
    (run / "result.json").unlink()
    KINDS[kind](run / "checkpoints" / NEWEST, chosen)
    code, output, errors = resume(f"--run_dir={run}", *FLAGS, "--resume=auto")
    assert code == 0, f"{kind}: ends with {code}: {errors}"
    start = f"warning: checkpoint {run}/checkpoints/{NEWEST} is damaged: "
    lines = errors.splitlines()
    assert len(lines) == 1, f"{kind}: not one line: {lines}"
    assert lines[0].startswith(start), f"{kind}: {lines[0]}"
    assert "continued at step 40\n" in output, f"{kind}: not from step 40"
    expected = processes.result_of(trained)["weights_sha256"]
    weights = processes.result_of(run)["weights_sha256"]
    assert weights == expected, f"{kind}: other weights"


def _attempt(chosen: random.Random, folder: pathlib.Path) -> None:
    def resume(*flags: str) -> tuple[int, str, str]:
        done = processes.run(*flags)
        return done.returncode, done.stdout, done.stderr

    result = processes.train(folder / "trained", *FLAGS)
    assert result["weights_sha256"] == undisturbed_weights(*FLAGS), "not repeatable"
    for kind in KINDS:
        run = folder / kind.replace(" ", "-")
        assert_falls_back(kind, folder / "trained", run, chosen, resume)


SCENARIOS = (
    Scenario(
        name="newest-checkpoint-damaged",
        promise="one line for each of 11 kinds, and the same weights from the "
        "checkpoint before",
        tries=5,
        attempt=_attempt,
    ),
)
