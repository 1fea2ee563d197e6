"""Texts of `--help`, 80 columns wide.

Tests check and run every example command of this module.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from strategies.common.text import as_argument
from trainers.cli.flag_list import Flag, all_flags
from trainers.config.comparison import ComparisonConfig
from trainers.config.config import all_fields
from trainers.config.prediction import PredictionConfig

_COLUMNS = 80
_PROGRAM = "python -m trainers.main"

_HOW_TO_READ = (
    "Flags follow. After = stands the default; where there is none, capitals say what "
    "is to be given: N a whole number, X a number, LIST values with commas between "
    "them. A switch such as --[no]verbose is off unless its text says otherwise."
)

# Groups whose settings only one or a few modes use.
_OF_OTHER_MODES = (ComparisonConfig, PredictionConfig)


def whole() -> str:
    """Returns the text of `--help`: introduction, modes and all flags by subject."""
    return "\n".join(
        [*_beginning(), "", *_wrapped(_HOW_TO_READ), *_listed(all_flags())]
    )


def short() -> str:
    """Returns the text of `--helpshort`: introduction, modes and subjects of flags."""
    headings = dict.fromkeys(flag.heading for flag in all_flags())
    subjects = f"--help lists all {len(all_flags())} flags: {'; '.join(headings)}."
    return "\n".join([*_beginning(), "", *_wrapped(subjects)])


def of_mode(name: str) -> str:
    """Returns the help page of one mode.

    Args:
      name: Key of `MODES`.
    """
    mode = MODES[name]
    lines = [
        f"Usage: {_PROGRAM} --mode={name} [--FLAG=VALUE ...]",
        "",
        *_wrapped(f"{mode.summary} {mode.details}"),
        *_examples(
            "Examples:" if len(mode.examples) > 1 else "Example:", mode.examples
        ),
        "",
        *_wrapped(_HOW_TO_READ),
        *_listed(_flags_of(mode)),
    ]
    if mode.others:
        lines += ["", *_wrapped(mode.others)]
    return "\n".join(lines)


def _beginning() -> list[str]:
    width = max(map(len, MODES))
    return [
        f"Usage: {_PROGRAM} [--mode=MODE] [--FLAG=VALUE ...]",
        "",
        *_wrapped(PURPOSE),
        *_examples("Examples, which work as they are, one after the other:", EXAMPLES),
        "",
        "Modes, each with a page of its own, such as --mode=compare --help:",
        "",
        *(f"  --mode={name:<{width}}  {mode.summary}" for name, mode in MODES.items()),
    ]


def _flags_of(mode: Mode) -> tuple[Flag, ...]:
    if mode.own_flags:
        by_name = {flag.name: flag for flag in all_flags()}
        return tuple(by_name[name] for name in mode.own_flags)
    return tuple(
        flag
        for flag in all_flags()
        if not flag.is_setting or all_fields()[flag.name][0] not in _OF_OTHER_MODES
    )


def _examples(heading: str, examples: Iterable[Example]) -> Iterator[str]:
    yield ""
    yield heading
    for example in examples:
        yield ""
        yield f"  {example.purpose}"
        yield from _command(example.command)


def _command(command: str) -> list[str]:
    """Returns the lines of a shell command, broken only before flags."""
    lines: list[str] = []
    # Splits at a blank before --flag=, unless the blank is inside single quotes: an
    # even number of quotes must follow it.
    for part in re.split(r" (?=--\w+=)(?=(?:[^']*'[^']*')*[^']*$)", command):
        if lines and len(lines[-1]) + len(part) + 1 <= _COLUMNS - 2:
            lines[-1] += f" {part}"
        else:
            # Two columns stay free for the blank and the backslash that continue a
            # line.
            lines.append(f"{' ' * (6 if lines else 4)}{part}")
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def _listed(flags: Sequence[Flag]) -> Iterator[str]:
    # groupby needs the flags of a heading in sequence, the order of `all_flags`.
    for heading, group in itertools.groupby(flags, lambda flag: flag.heading):
        yield ""
        yield f"{heading}:"
        for flag in group:
            yield f"  {_head(flag)}"
            yield from _wrapped(_body(flag), indent=6)


def _head(flag: Flag) -> str:
    if flag.is_switch:
        # Switches of the command line itself, such as --help, have no negative form.
        return f"--[no]{flag.name}" if flag.is_setting else f"--{flag.name}"
    if flag.default is not None:
        return f"--{flag.name}={as_argument(flag.default)}"
    return f"--{flag.name}={_placeholder(flag)}"


def _placeholder(flag: Flag) -> str:
    if flag.is_list:
        return "LIST"
    if flag.path is not None:
        return "FOLDER" if flag.path == "folder" else "FILE"
    return {int: "N", float: "X"}.get(flag.item, "WORD" if flag.choices else "TEXT")


def _body(flag: Flag) -> str:
    text = flag.help
    if flag.default is True:
        text += " On by default."
    if flag.choices:
        text += f" {'Any' if flag.is_list else 'One'} of: {', '.join(flag.choices)}."
    return text


def _wrapped(text: str, indent: int = 0) -> list[str]:
    space = " " * indent
    return textwrap.wrap(
        text,
        _COLUMNS,
        initial_indent=space,
        subsequent_indent=space,
        # A broken flag or path could be neither found by a search nor pasted.
        break_on_hyphens=False,
        break_long_words=False,
    )


PURPOSE = (
    "Trains a Keras model under a distribution strategy. Change --strategy, and the "
    "same training is done in another way. Every run is a folder with its settings, "
    "curves, checkpoints and a result.json."
)


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """One command of the help, which works unchanged after the previous examples.

    Attributes:
      purpose: Sentence above the command.
      command: Shell command on one line.
    """

    purpose: str
    command: str


# In this order the commands work in an empty folder and take two minutes on two cores.
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
      summary: Description in one line.
      details: Further sentences for the mode's own page.
      own_flags: Flags on the mode's own page; empty for all flags except other modes'.
      others: Sentence on the flags that the page leaves out.
      examples: Commands that work unchanged after the commands of `EXAMPLES`.
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
