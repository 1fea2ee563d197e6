"""What `--help` says besides the flags: what the program is for, modes, examples.

Tests give every command here to the real checks, and run them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

PURPOSE = (
    "Trains a Keras model under a distribution strategy. Change --strategy, and the "
    "same training is done in another way. Every run is a folder with its settings, "
    "curves, checkpoints and a result.json."
)


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """A command that works as it is, after those before it."""

    purpose: str
    command: str


# In this order they work in an empty folder, in two minutes on two cores.
EXAMPLES: Sequence[Example] = (
    Example(
        "Train on handwritten digits, which need no download:",
        "python -m trainers.main --strategy=mirrored --run_dir=runs/first",
    ),
    Example(
        "Go on from there under another strategy, with four replicas:",
        "python -m trainers.main --strategy=tower --num_replicas=4 "
        "--run_dir=runs/first --train_steps=2000 --resume=auto",
    ),
    Example(
        "Evaluate what that has come to:",
        "python -m trainers.main --mode=evaluate --run_dir=runs/first",
    ),
    Example(
        "Is it the same training? Compare every step with that of one device:",
        "python -m trainers.main --mode=verify --strategies=tower,mirrored "
        "--train_steps=20",
    ),
    Example(
        "Which is faster, and is it as accurate? Run each three times:",
        "python -m trainers.main --mode=compare --strategies=one_device,mirrored "
        "--seeds=3 --train_steps=300",
    ),
    Example(
        "Would a cluster of three workers start here, and what would be slow?",
        "python -m trainers.main --mode=doctor --strategy=multi_worker_mirrored "
        "--num_workers=3",
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Mode:
    """One choice of --mode.

    Attributes:
      summary: what it does, in a line.
      details: what else one should know before using it.
      own_flags: those that its own page explains; none for all but other modes'.
      others: what its page says of the flags that it leaves out.
      examples: commands that work as they are, after those of `EXAMPLES`.
    """

    summary: str
    details: str
    own_flags: Sequence[str] = ()
    others: str = ""
    examples: Sequence[Example] = ()


_OF_RUNS = "Flags of training hold for every run; --help lists them."

MODES: Mapping[str, Mode] = {
    "train": Mode(
        summary="Train a model. The default.",
        details="Into --run_dir, or a new folder under runs/. Strategies of several "
        "processes start their cluster on this machine, unless TF_CONFIG or Slurm "
        "says that this process is a task of one.",
        examples=EXAMPLES[:2],
    ),
    "evaluate": Mode(
        summary="Evaluate the newest checkpoint of --run_dir.",
        details="On the examples that were held out, with the settings of the run; "
        "strategy and devices may be others. Prints loss and metrics, writes nothing.",
        own_flags=(
            *("run_dir", "exported_model", "strategy", "num_replicas", "devices"),
            *("model", "dataset", "data_path", "eval_data_path", "verbose"),
        ),
        others="A model or data of your own, and paths, must be given again.",
        examples=EXAMPLES[2:3],
    ),
    "verify": Mode(
        summary="Tell whether --strategies train the same as one_device.",
        details="From the same weights over the same batches, every step is compared. "
        "The verdict is identical, equivalent or different, with the likely cause, in "
        "verify.json. Exit code 4 if one is different.",
        own_flags=("strategies", "run_dir", "train_steps", "dtype", "seed", "verbose"),
        others=_OF_RUNS,
        examples=EXAMPLES[3:4],
    ),
    "compare": Mode(
        summary="Tell which of --strategies or --arm is better.",
        details="Runs each with several seeds, in turns, and says which is faster, "
        "whether accuracy suffers, and what could not have been seen, in report.html, "
        "report.md and comparison.json. The same command with its --run_dir goes on "
        "after an interrupt.",
        own_flags=(
            *("strategies", "arm", "runs", "seeds", "accuracy_margin_points"),
            *("target_accuracy", "allow_different", "run_dir", "seed", "verbose"),
        ),
        others=_OF_RUNS,
        examples=(
            EXAMPLES[4],
            Example(
                "Compare any two settings:",
                "python -m trainers.main --mode=compare --train_steps=300 --seeds=3 "
                "--arm='two: --strategy=tower --num_replicas=2' "
                "--arm='four: --strategy=tower --num_replicas=4'",
            ),
        ),
    ),
    "predict": Mode(
        summary="Predict step times on a larger cluster.",
        details="Runs each of --strategies for seconds with one to four replicas, fits "
        "a model of a step to them, and says what steps would take on more replicas "
        "and another network, with the error that the model has here. Takes minutes.",
        own_flags=(
            *("strategies", "replicas", "bandwidth_gbit", "latency_microseconds"),
            *("global_batch_size", "model", "dataset", "run_dir", "verbose"),
        ),
        others=_OF_RUNS,
        examples=(
            Example(
                "What would eight machines bring, with 25 Gbit/s between them?",
                "python -m trainers.main --mode=predict --replicas=2,8 "
                "--strategies=multi_worker_mirrored --bandwidth_gbit=25",
            ),
        ),
    ),
    "doctor": Mode(
        summary="Tell whether a command would train, and what would be slow.",
        details="Put it beside the flags of training. It looks at the machine, the "
        "folder and the data, writes nothing and starts nothing. Exit code 2 if the "
        "run could not start.",
        examples=EXAMPLES[5:],
    ),
    "devices": Mode(
        summary="List this machine's devices, and where replicas would be.",
        details="Writes nothing.",
        own_flags=(
            *("strategy", "num_replicas", "devices", "soft_placement"),
            *("memory_growth", "memory_limit_mib", "memory_fraction", "verbose"),
        ),
        examples=(
            Example(
                "Where would four replicas be?",
                "python -m trainers.main --mode=devices --strategy=tower "
                "--num_replicas=4",
            ),
        ),
    ),
}
