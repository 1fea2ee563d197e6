"""Checks that a disturbed run continues to the weights of an undisturbed one."""

import functools
import pathlib
import re
import tempfile

from tests import processes
from trainers.run_dir.checkpoint_manifest import DamagedError, read_commit

SYNCHRONOUS = ("one_device", "multi_worker_mirrored")

# A model and an optimizer that continue exactly only if a checkpoint keeps more than
# weights.
SMALL = (
    "--model=mlp",
    "--hidden_units=16",
    "--dropout=0.3",
    "--optimizer=adam",
    "--set=report.histogram_every_steps=none",
    # A compilation takes longer than the steps.
    "--jit_compile=off",
)


@functools.cache
def undisturbed_weights(*flags: str) -> str:
    """Returns the digest of the weights of a run without a fault."""
    with tempfile.TemporaryDirectory() as folder:
        return processes.train(pathlib.Path(folder) / "run", *flags)["weights_sha256"]


def assert_continues(run: pathlib.Path, *flags: str, is_exact: bool = True) -> None:
    """Resumes a run, and compares its end with an undisturbed run.

    Args:
      run: Run folder.
      flags: Flags with which the run was started.
      is_exact: True if a step depends only on the steps before it.
    """
    before = newest_intact(run)
    done = processes.run(f"--run_dir={run}", *flags, "--resume=auto")
    assert done.returncode == 0, f"resuming ends with {done.returncode}: {done.stderr}"
    assert "damaged" not in done.stderr, f"a kill damages: {done.stderr}"
    continued = re.search(r"continued at step (\d+)", done.stdout)
    step = int(continued[1]) if continued else 0
    if "nothing to do" not in done.stdout:
        assert step == (before or 0), f"continues at {step}, not at {before}"
    result = processes.result_of(run)
    assert result["status"] == "completed", f"ends as {result['status']}"
    leftovers = [str(path) for path in run.rglob(".*")]
    assert leftovers == [], f"left over: {leftovers}"
    if is_exact:
        same = result["weights_sha256"] == undisturbed_weights(*flags)
        assert same, f"other weights than undisturbed, from step {step}"


def newest_intact(run: pathlib.Path) -> int | None:
    """Returns the step of the newest checkpoint without damage, or None."""
    for name in reversed(processes.checkpoints_of(run)):
        step = int(name.removeprefix("step-"))
        try:
            read_commit(run / "checkpoints" / name, step)
        except DamagedError:
            continue
        return step
    return None
