"""Texts of `--help` and `--helpfull`, for terminals of 80 columns and narrower ones."""

import dataclasses
import inspect
import re
import shutil
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping

from strategies import registry
from strategies.common.fields import choices_of, field_types
from strategies.common.text import as_argument
from trainers.config.groups import GROUPS, all_fields, defaults_of, option
from trainers.config.used_settings import deciding_on, values_with_effect

# Longer lines are hard to read, and the words of a flag need some room.
_MOST_COLUMNS, _FEWEST_COLUMNS = 80, 40

_ABOUT = (
    "Trains a Keras model, or a Keras program with --script=train.py, under a "
    "distribution strategy. Change --strategy, and the same training is done in "
    "another way. Every run is a folder with its settings, curves, checkpoints and a "
    "result.json."
)
_FIRST_COMMANDS = (
    "python -m trainers.main --strategy=mirrored --run_dir=runs/first",
    "python -m trainers.main --mode=evaluate --run_dir=runs/first",
)
_FURTHER_PAGES = (
    "Each strategy and mode has a page with its own flags: "
    "--strategy=parameter_server --help, --mode=compare --help."
)

_HOW_TO_READ = (
    "The value after = is the default. Without a default, capitals name the kind of "
    "value: N an integer, X a number, LIST values separated by commas. A switch such "
    "as --[no]verbose is off unless its text says otherwise."
)

# Flags that are no settings of a run -> text.
COMMAND_FLAGS: Mapping[str, str] = {
    "config": "JSON file of settings by group, such as a run's config.json; --set and "
    "flags override it.",
    "set": "Any setting, as --set=group.name=value, such as "
    "--set=optimizer.momentum=0.8. Can be given several times; flags override it.",
    "help": "Show this text (also -h). With --mode or --strategy, a page about it.",
    "helpfull": "Show all settings, also those that --set and --config alone set.",
    "version": "Print the versions of this program and of its packages.",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Mode:
    """One choice of `--mode`.

    Attributes:
      summary: Description in one line.
      details: Further sentences for the mode's own page.
      example: Flags of a command that works in an empty folder, after the commands of
        `--help`.
    """

    summary: str
    details: str
    example: str


MODE_PAGES: Mapping[str, Mode] = {
    "train": Mode(
        "Train a model. The default.",
        "Writes into --run_dir, or a new folder under runs/. Strategies of several "
        "processes start their cluster on this machine, unless TF_CONFIG or Slurm says "
        "that this process is a task of one.",
        "--strategy=tower --num_replicas=4 --run_dir=runs/first --resume=auto",
    ),
    "evaluate": Mode(
        "Evaluate the newest checkpoint of --run_dir.",
        "Uses the examples that were held out and the settings of the run; strategy "
        "and devices may be others. Prints loss and metrics, writes nothing. Give a "
        "model or data of your own, and paths, again.",
        "--mode=evaluate --run_dir=runs/first",
    ),
    "verify": Mode(
        "Check that --strategies train the same as one_device.",
        "Compares every step, from the same weights over the same batches. The verdict "
        "is identical, equivalent or different, with the likely cause, in verify.json. "
        "Exit code 4 if one is different.",
        "--mode=verify --strategies=tower,mirrored --train_steps=20",
    ),
    "compare": Mode(
        "Find which of --strategies or --arm is better.",
        "Runs each with several seeds, in turns, and says which is faster, whether "
        "accuracy suffers, and what the runs cannot show, in report.html, report.md "
        "and comparison.json. The same command with its --run_dir continues after an "
        "interrupt.",
        "--mode=compare --strategies=one_device,mirrored --seeds=3 --train_steps=300",
    ),
    "predict": Mode(
        "Predict step times on a larger cluster.",
        "Runs each of --strategies for seconds with one to four replicas, fits a model "
        "of a step to them, and predicts steps on more replicas and another network, "
        "with the error that the model has here. Takes minutes.",
        "--mode=predict --strategies=multi_worker_mirrored --replicas=2,8 "
        "--set=prediction.bandwidth_gbit=25",
    ),
    "explain": Mode(
        "Find where the time of a step goes, and why.",
        "Trains once with clocks inside the steps. Shows how each task and replica "
        "spent its time. Names the cause, if one stands out, and the change to make. "
        "Writes explain.html, explain.json and trace.json.",
        "--mode=explain --strategy=multi_worker_mirrored --num_workers=2 "
        "--train_steps=300",
    ),
    "doctor": Mode(
        "Check whether a command would train, and what would be slow.",
        "Add it to the flags of training. It inspects the machine, the folder and the "
        "data, writes nothing and starts nothing. Exit code 2 if the run could not "
        "start.",
        "--mode=doctor --strategy=multi_worker_mirrored --num_workers=3",
    ),
    "devices": Mode(
        "List this machine's devices, and which of them replicas would use.",
        "Writes nothing.",
        "--mode=devices --strategy=tower --num_replicas=4",
    ),
}


def short() -> str:
    """Returns the text of `--help`: modes, strategies and flags that all of them have.

    Flags of some modes or strategies alone are on the pages of those.
    """
    without_flag = len(all_fields()) - sum(map(_has_flag, all_fields()))
    further = (
        f"{without_flag} settings that are rarely changed have no flag: --helpfull "
        "lists them, --set and --config set them."
    )
    return "\n".join([*_introduction(), *_listed(_is_common), "", *_wrapped(further)])


def full() -> str:
    """Returns the text of `--helpfull`: that of `--help` with all settings."""
    return "\n".join([*_introduction(), *_listed(lambda name: True)])


def page(mode: str | None, strategy: str | None) -> str:
    """Returns the page of a mode or strategy, or `short` if neither is known."""
    if mode is not None and mode in MODE_PAGES:
        return of_mode(mode)
    if strategy in registry.names():
        return of_strategy(strategy)
    return short()


def of_mode(name: str) -> str:
    """Returns the help page of one mode."""
    mode = MODE_PAGES[name]
    return _page_of(
        f"--mode={name}",
        f"{mode.summary} {mode.details}",
        mode.example,
        lambda setting: name in values_with_effect(setting, "mode"),
        "--help lists the flags that all modes have.",
    )


def of_strategy(name: str) -> str:
    """Returns the help page of one strategy."""
    traits = registry.traits(name)

    def is_used(setting: str) -> bool:
        deciding = _decided_by(setting)
        averages = {*traits.averages} & {*values_with_effect(deciding, "average")}
        return name in values_with_effect(deciding, "strategy") or bool(averages)

    return _page_of(
        f"--strategy={name}",
        traits.summary,
        f"--strategy={name} --train_steps=300",
        is_used,
        "--help lists the flags that all strategies have.",
    )


def _page_of(
    flag: str,
    description: str,
    example: str,
    is_listed: Callable[[str], bool],
    end: str,
) -> str:
    lines = [
        *_usage(flag),
        "",
        *_wrapped(description),
        "",
        "Example:",
        "",
        *_command(f"python -m trainers.main {example}"),
        *_listed(is_listed),
        "",
        *_wrapped(end),
    ]
    return "\n".join(lines)


def _introduction() -> Iterator[str]:
    yield from _usage("[--mode=MODE]")
    yield ""
    yield from _wrapped(_ABOUT)
    yield ""
    for command in _FIRST_COMMANDS:
        yield from _command(command)
    yield ""
    yield from _wrapped(_FURTHER_PAGES)
    yield ""
    for name, mode in MODE_PAGES.items():
        yield from _wrapped(f"--mode={name:<8}  {mode.summary}", indent=2, further=17)
    yield ""
    yield from _wrapped(_HOW_TO_READ)
    yield from _heading("This command line")
    for name, text in COMMAND_FLAGS.items():
        values = {"config": "=FILE", "set": "=GROUP.NAME=VALUE"}
        yield f"  --{name}{values.get(name, '')}"
        yield from _wrapped(text, indent=6)


def _has_flag(name: str) -> bool:
    return all_fields()[name].field.metadata["has_flag"]


def _is_common(name: str) -> bool:
    """Returns whether a flag has an effect on training under every strategy."""
    modes = values_with_effect(name, "mode")
    return (
        _has_flag(name)
        and not values_with_effect(_decided_by(name), "strategy")
        and (not modes or "train" in modes)
    )


def _decided_by(name: str) -> str:
    """Returns the setting that has the strategies of another one, or the same setting.

    --outer_dtype has an effect with some values of --outer_optimizer, and so under the
    strategies of that.
    """
    deciding = deciding_on(name)
    others = [other for other in deciding if values_with_effect(other, "strategy")]
    return others[0] if others and "strategy" not in deciding else name


def _heading(text: str) -> tuple[str, str]:
    return "", f"{text}:"


def _listed(is_listed: Callable[[str], bool]) -> Iterator[str]:
    for config_class in GROUPS.values():
        names = list(filter(is_listed, defaults_of(config_class)))
        if names:
            yield from _heading((inspect.getdoc(config_class) or "").strip("."))
        for name in names:
            yield f"  {_head(name)}"
            yield from _wrapped(_body(name), indent=6)


def _head(name: str) -> str:
    config_class, field = all_fields()[name]
    hint, _ = field_types(config_class)[name]
    has_flag = field.metadata["has_flag"]
    if hint is bool and has_flag:
        return f"--[no]{name}"
    if field.default is not None:
        return f"{option(name)}={as_argument(field.default)}"
    if typing.get_origin(hint) is tuple and not field.metadata["repeatable"]:
        return f"{option(name)}=LIST"
    if field.metadata["path"] is not None:
        placeholder = "FOLDER" if field.metadata["path"] == "folder" else "FILE"
    else:
        words = "WORD" if field.metadata["choices"] else "TEXT"
        placeholder = {int: "N", float: "X"}.get(hint, words)
    return f"{option(name)}={placeholder}"


def _body(name: str) -> str:
    config_class, field = all_fields()[name]
    text = field.metadata["help"]
    if field.default is True and field.metadata["has_flag"]:
        text += " On by default."
    choices = choices_of(field)
    if choices:
        hint, _ = field_types(config_class)[name]
        is_list = typing.get_origin(hint) is tuple
        text += f" {'Any' if is_list else 'One'} of: {', '.join(choices)}."
    return text


def _usage(flag: str) -> list[str]:
    return _wrapped(f"Usage: python -m trainers.main {flag} [--FLAG=VALUE ...]")


def _columns() -> int:
    """Returns the most characters of a line, by the width of the terminal if any."""
    return max(_FEWEST_COLUMNS, min(shutil.get_terminal_size().columns, _MOST_COLUMNS))


def _command(command: str) -> list[str]:
    """Returns the lines of a shell command, broken before flags."""
    lines: list[str] = []
    for part in re.split(r" (?=--)", command):
        if lines and len(lines[-1]) + len(part) + 1 <= _columns() - 2:
            lines[-1] += f" {part}"
        else:
            # Two columns stay free for the blank and the backslash.
            lines.append(f"{' ' * (4 if lines else 2)}{part}")
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def _wrapped(text: str, indent: int = 0, further: int = 0) -> list[str]:
    """Returns the lines of a text, which are indented, `further` after the first."""
    return textwrap.wrap(
        text,
        _columns(),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + further),
        # A broken flag or path could be neither found by a search nor pasted.
        break_on_hyphens=False,
        break_long_words=False,
    )
