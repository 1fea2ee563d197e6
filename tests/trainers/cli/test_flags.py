import contextlib
import dataclasses
import importlib.metadata
import json
import math
import pathlib
import re
import subprocess
import sys
import time
import typing
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from models import factories
from strategies import registry
from strategies.common.errors import UsageError
from strategies.common.fields import choices_of, field_types
from tests.processes import ROOT, environment, run_words
from trainers.cli import flags, version
from trainers.config.config import Config, without_lists
from trainers.config.file import config_from_file
from trainers.config.groups import OTHER_NAMES, all_fields, by_group, option
from trainers.config.used_settings import without_unused
from trainers.experiments.arms import arms_of
from trainers.main import main

NUMBERS = (int, float)


def parse(*arguments: str) -> Config:
    return flags.parse(["main", *arguments])


def refusal(*arguments: str) -> str:
    with pytest.raises(UsageError) as raised:
        parse(*arguments)
    return str(raised.value)


def short(value: Any) -> str:
    """Returns a short name of a value, for the ID of a test."""
    return ascii(value)[:30]


def write_config(folder: pathlib.Path, content: str | dict[str, Any]) -> str:
    """Writes a text, or settings by name, into a file; returns the flag for it."""
    path = folder / "settings.json"
    text = content if isinstance(content, str) else json.dumps(by_group(content))
    path.write_text(text, encoding="utf-8")
    return f"--config={path}"


def value_of(config: Config, name: str) -> Any:
    return getattr(getattr(config, all_fields()[name].group_class.group), name)


# Where values come from


def test_without_arguments_everything_is_the_default() -> None:
    assert parse() == Config()


def test_a_flag_goes_before_the_file_and_the_file_before_the_default(
    tmp_path: pathlib.Path,
) -> None:
    file = write_config(tmp_path, {"seed": 1, "train_steps": 20})
    config = parse(file, "--seed=2")
    assert config.run.seed == 2
    assert config.length.train_steps == 20
    assert config.length.global_batch_size == Config().length.global_batch_size


def test_a_flag_goes_before_the_file_wherever_it_stands(tmp_path: pathlib.Path) -> None:
    file = write_config(tmp_path, {"seed": 1})
    assert parse("--seed=2", file).run.seed == 2


def test_a_flag_with_the_default_value_goes_before_the_file(
    tmp_path: pathlib.Path,
) -> None:
    file = write_config(tmp_path, {"seed": 1, "verbose": True})
    config = parse(file, "--seed=0", "--noverbose")
    assert config.run.seed == 0
    assert config.run.verbose is False


def test_flags_complete_a_file_that_is_not_enough_alone(tmp_path: pathlib.Path) -> None:
    file = write_config(tmp_path, {"dataset": "tfrecord", "mode": "evaluate"})
    config = parse(file, "--data_path=records", "--run_dir=run")
    assert config.data.dataset == "tfrecord"
    assert config.data.data_path == "records"
    assert config.run.run_dir == "run"


def test_flags_settle_a_contradiction_in_the_file(tmp_path: pathlib.Path) -> None:
    file = write_config(tmp_path, {"train_steps": 20})
    assert "--train_steps=20 and --epochs=3" in refusal(file, "--epochs=3")
    config = parse(file, "--epochs=3", "--train_steps=none")
    assert (config.length.train_steps, config.length.epochs) == (None, 3)


def test_the_last_of_a_repeated_flag_counts() -> None:
    assert parse("--seed=1", "--seed=2").run.seed == 2


def test_a_value_may_follow_as_an_argument_of_its_own() -> None:
    assert parse("--seed", "3", "--verbose", "--model", "mlp") == parse(
        "--seed=3", "--verbose", "--model=mlp"
    )


# What values look like


@pytest.mark.parametrize(
    "name",
    [name for name, (group, _) in all_fields().items() if field_types(group)[name][1]],
)
def test_none_unsets_an_optional_setting(name: str) -> None:
    assert value_of(parse(f"{option(name)}=none"), name) is None


@pytest.mark.parametrize("name", ["seed", "model", "eval_fraction", "hidden_units"])
def test_none_is_refused_where_there_must_be_a_value(name: str) -> None:
    assert f"{option(name)}=none" in refusal(f"{option(name)}=none")


def test_lists_are_separated_by_commas() -> None:
    assert parse("--set=report.profile_steps=7,8").report.profile_steps == (7, 8)
    mlp = parse("--model=mlp", "--hidden_units=7")
    assert mlp.model.hidden_units == (7,)


def test_switches_are_set_and_unset() -> None:
    for argument in ("--verbose", "--verbose=true", "--verbose=1"):
        assert parse(argument).run.verbose is True
    for argument in ("--noverbose", "--verbose=false"):
        assert parse("--verbose", argument).run.verbose is False


def test_numbers_are_read_as_their_type() -> None:
    config = parse("--learning_rate=3", "--train_steps=4", "--clip_global_norm=1e-3")
    assert config.optimizer.learning_rate == 3.0
    assert isinstance(config.optimizer.learning_rate, float)
    assert isinstance(config.length.train_steps, int)
    assert config.optimizer.clip_global_norm == 1e-3


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert parse("--run_dir=~/run").run.run_dir == "/somewhere/run"


# Refused settings


@pytest.mark.parametrize(
    ("argument", "suggestion"),
    [
        ("--strateg=tower", "--strategy"),
        ("--learning-rate=1", "--learning_rate"),
        ("--nostrategy", "--strategy"),
        ("--helpful", "--helpfull"),
        ("--lr=3", "--learning_rate"),
        ("--batch_size=3", "--global_batch_size?"),
        ("--workers=3", "--num_workers"),
        ("--momentum=0.5", "--set=optimizer.momentum"),
        ("--noaugmentation", "--set=data.augmentation"),
        ("--gpus=2", "--num_replicas or --devices?"),
        ("--nodes=2", "--num_workers?"),
        ("--Num-Steps=3", "--train_steps?"),
        ("--noxla", "--jit_compile?"),
        ("--STRATEGY=tower", "--strategy?"),
    ],
)
def test_an_unknown_flag_is_named_and_the_nearest_suggested(
    argument: str, suggestion: str
) -> None:
    message = refusal(argument)
    name = argument.partition("=")[0]
    assert message.startswith(f"{name} is unknown")
    assert suggestion in message.removeprefix(name)
    assert "--help" in message


def test_names_of_other_programs_are_no_settings_here_and_mean_some() -> None:
    for name, meant in OTHER_NAMES.items():
        assert name not in all_fields()
        assert set(meant) <= all_fields().keys()


@pytest.mark.parametrize("argument", ["--flagfile=more", "--undefok=nonsense"])
def test_what_absl_would_read_in_secret_is_unknown(argument: str) -> None:
    assert "is unknown" in refusal(argument, "--nonsense=3")


@pytest.mark.parametrize(
    "arguments",
    [
        ("train",),
        ("--seed=1", "train"),
        ("--verbose", "true"),
        ("-",),
        ("",),
    ],
)
def test_an_argument_that_is_no_flag_is_refused(arguments: tuple[str, ...]) -> None:
    assert "is not a flag: every setting is given as --name=value" in refusal(
        *arguments
    )


ABSURD = [
    "",
    " ",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "-1",
    "0x10",
    "abc",
    "1,2",
    "[1]",
    "None",
    "True",
    "9" * 400,
    "9" * 5000,
    "-" + "9" * 30,
    "1e-400x",
    "5\n6",
    "\udcff",
    "a\0b",
]


def numeric_fields() -> list[str]:
    return [
        name
        for name, (group, _) in all_fields().items()
        if field_types(group)[name][0] in NUMBERS
    ]


# Not a test for each value: 1,120 take seconds by themselves.
@pytest.mark.parametrize("name", numeric_fields())
def test_absurd_numbers_are_refused_and_named(name: str) -> None:
    for value in ABSURD:
        message = refusal(f"{option(name)}={value}")
        assert option(name) in message, short(value)
        assert len(message) < 400, f"too long to read: {short(value)}"


LARGE = [
    *("2147483648", str(2**53 + 1), str(2**62), str(2**63 - 1), str(2**63)),
    *("1e308", "-1e400", "5e-324", "9" * 4301),
    *("x" * 100_000, "x:" * 50_000, "a," * 30_000 + "a", "keras:" + "x" * 100_000),
    *("-" * 1_000, "[" * 1_000, "\n" * 1_000, "é" * 1_000),
]


@pytest.mark.parametrize("value", LARGE, ids=short)
def test_a_large_value_is_a_configuration_or_refused(value: str) -> None:
    for name in [*map(option, all_fields()), "--config", "--set"]:
        with contextlib.suppress(UsageError, flags.HelpRequested):
            config = parse(f"{name}={value}")
            assert parse(*flags.arguments_of(config)) == config


def test_what_is_left_of_a_large_value_is_a_line_that_can_be_read(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["main", f"--data_path={'x' * 100_000}"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert len(line) < 1_000
    assert line.endswith("or leave the path out.")


# Which settings have an effect


def test_every_setting_names_those_that_decide_about_it() -> None:
    """Checks that these settings exist and take the listed values."""
    for name, (_, field) in all_fields().items():
        for other, listed in (field.metadata["used_by"] or {}).items():
            values = listed() if callable(listed) else listed
            assert values, f"{name} is used by no {other}"
            choices = choices_of(all_fields()[other].field)
            own = {"true", factories.PATTERN}
            assert choices is None or {*values} - own <= {*choices}, name


def test_a_model_takes_the_settings_that_its_file_names() -> None:
    for model in ("mlp", "convnet", "wide_embedding"):
        assert parse(f"--model={model}", "--dropout=0.1").model.dropout == 0.1
    assert parse("--model=wide_embedding", "--hidden_units=8").model.hidden_units == (
        8,
    )
    with pytest.raises(
        UsageError, match="--hidden_units=8 is not used by --model=conv"
    ):
        parse("--model=convnet", "--hidden_units=8")


def test_a_file_of_another_strategy_leaves_its_settings_behind(
    tmp_path: pathlib.Path,
) -> None:
    was = parse("--strategy=parameter_server", "--num_ps=3", "--num_workers=4")
    file = write_config(tmp_path, was.to_dict())
    assert parse(file) == was
    mirrored = parse(file, "--strategy=mirrored")
    assert (mirrored.strategy.num_ps, mirrored.strategy.num_workers) == (None, None)
    workers = parse(file, "--strategy=multi_worker_mirrored")
    assert (workers.strategy.num_ps, workers.strategy.num_workers) == (None, 4)
    assert "--num_ps=2 is not used" in refusal(file, "--strategy=tower", "--num_ps=2")


def test_a_file_of_another_data_set_leaves_its_augmentation_behind(
    tmp_path: pathlib.Path,
) -> None:
    was = parse("--dataset=cifar10", "--set=data.augmentation=false")
    file = write_config(tmp_path, was.to_dict())
    assert parse(file) == was
    assert parse(file, "--dataset=digits").data.augmentation


def test_a_file_that_contradicts_itself_is_refused(tmp_path: pathlib.Path) -> None:
    file = write_config(tmp_path, {"strategy": "mirrored", "num_ps": 3})
    assert "--num_ps=3 is not used by --strategy=mirrored" in refusal(file)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--metrics=mae",), "--metrics=mae is for a model of your own"),
        (("--loss=mse",), "--loss=mse is for a model of your own"),
        (
            ("--mode=compare", "--strategies=tower", "--seeds=1-2"),
            "the first number of --seeds=1 is out of range: give 3 or more",
        ),
        (("--seeds=3-5",), "--seeds=3 is not used by --mode=train"),
        (("--num_ps=3",), "or choose --strategy=parameter_server."),
        (("--seeds=3",), "or choose --mode=compare."),
        (("--replicas=3",), "or choose --mode=predict, or --num_replicas."),
    ],
)
def test_a_refusal_names_the_flag_that_was_given(
    arguments: tuple[str, ...], words: str
) -> None:
    message = refusal(*arguments)
    assert words in message
    assert "--set=" not in message


def test_an_arm_leaves_shared_settings_behind_that_others_use() -> None:
    config = parse(
        *("--mode=compare", "--num_workers=3", "--hidden_units=8"),
        *("--arm=few: --strategy=multi_worker_mirrored", "--arm=one: --model=mlp"),
    )
    few, one = (arm.config for arm in arms_of(config))
    assert (few.strategy.num_workers, few.model.hidden_units) == (3, (128, 64))
    assert (one.strategy.num_workers, one.model.hidden_units) == (None, (8,))


def test_strategies_that_are_compared_take_of_the_settings_what_they_use() -> None:
    config = parse(
        *("--mode=compare", "--strategies=mirrored,parameter_server"),
        *("--num_ps=2", "--set=strategy.cross_device_reduction=hierarchical"),
    )
    mirrored, servers = (arm.config.strategy for arm in arms_of(config))
    assert (mirrored.num_ps, servers.num_ps) == (None, 2)
    assert mirrored.cross_device_reduction == "hierarchical"
    assert servers.cross_device_reduction == "auto"


def words() -> list[str]:
    return [
        name
        for name, (group, _) in all_fields().items()
        if field_types(group)[name][0] is str
    ]


@pytest.mark.parametrize("name", words())
@pytest.mark.parametrize("value", ["a\0b", "\udcff"], ids=short)
def test_a_word_that_is_no_text_is_refused(name: str, value: str) -> None:
    assert f"{option(name)}=" in refusal(f"{option(name)}={value}")


# An empty schema is refused where schemas are read, with what they look like.
@pytest.mark.parametrize("name", sorted({*words()} - {"record_schema"}))
def test_an_empty_word_is_refused(name: str) -> None:
    assert f"{option(name)}= is " in refusal(f"{option(name)}=")


@pytest.mark.parametrize("value", ["", ",", "1,", "1,,2", "1,x", "0", "1,-2", "1.5"])
@pytest.mark.parametrize("name", ["hidden_units", "input_shape"])
def test_a_list_with_a_wrong_item_is_refused(name: str, value: str) -> None:
    assert option(name) in refusal(f"{option(name)}={value}")


@pytest.mark.parametrize(
    "argument", ["--verbose=maybe", "--verbose=", "--noverbose=1", "--help=x"]
)
def test_a_switch_takes_true_or_false(argument: str) -> None:
    message = refusal(argument)
    assert message.startswith(argument.partition("=")[0])
    assert "true or false" in message


def test_who_asks_for_help_on_a_mode_is_told_how() -> None:
    assert refusal("--help=compare").endswith("give --mode=compare --help.")


@pytest.mark.parametrize("name", ["seed", "config", "run_dir"])
def test_a_flag_without_its_value_is_refused(name: str) -> None:
    assert f"--{name}" in refusal(f"--{name}")


def test_a_choice_names_all_choices() -> None:
    message = refusal("--strategy=magic")
    assert message.startswith("--strategy=magic")
    for name in registry.names():
        assert name in message


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--train_steps=3", "--epochs=3"), ("--train_steps=3", "--epochs=3")),
        (
            ("--num_replicas=4", "--strategy=tower", "--global_batch_size=3"),
            ("--num_replicas=4", "--global_batch_size=3"),
        ),
        (("--num_replicas=2",), ("--num_replicas=2", "--strategy=one_device")),
        (("--dataset=tfrecord",), ("--data_path",)),
        (("--data_path=here",), ("--data_path=here", "--dataset=digits")),
        (("--eval_data_path=here",), ("--eval_data_path=here", "--dataset=digits")),
        (("--mode=evaluate",), ("--run_dir",)),
        (
            ("--set=optimizer.momentum=0.5", "--optimizer=sgd"),
            ("--set=optimizer.momentum=0.5", "--optimizer=sgd"),
        ),
        (
            ("--dataset=synthetic", "--set=data.num_examples=100000000"),
            ("--set=data.num_examples=100000000", "--set=data.input_shape=32,32,3"),
        ),
        (
            ("--dataset=clicks", "--set=data.num_examples=1000000000"),
            ("--set=data.num_examples=1000000000", "--set=data.num_columns=8"),
        ),
        (
            ("--dataset=clicks", "--set=data.num_categories=100000000"),
            ("--set=data.num_categories=100000000", "--set=data.num_columns=8"),
        ),
    ],
    ids=lambda value: value[0],
)
def test_settings_that_do_not_go_together_are_both_named(
    arguments: tuple[str, ...], named: tuple[str, ...]
) -> None:
    message = refusal(*arguments)
    for name in named:
        assert name in message


# The configuration file


@pytest.mark.parametrize(
    ("settings_", "named"),
    [
        ({"seed": True}, "--seed=true"),
        ({"seed": False}, "--seed=false"),
        ({"seed": 1.0}, "--seed=1.0"),
        ({"seed": "1"}, "--seed='1'"),
        ({"seed": None}, "--seed=null"),
        ({"seed": [1]}, "--seed=[1]"),
        ({"seed": {"value": 1}}, "--seed={"),
        ({"seed": 10**400}, "--seed=1000"),
        ({"train_steps": 2**63}, "--train_steps=9223372036854775808"),
        ({"learning_rate": True}, "--learning_rate=true"),
        ({"learning_rate": math.nan}, "--learning_rate=nan"),
        ({"learning_rate": math.inf}, "--learning_rate=inf"),
        ({"learning_rate": 10**400}, "--learning_rate=1000"),
        ({"learning_rate": "0.1"}, "--learning_rate='0.1'"),
        ({"verbose": 1}, "--verbose=1"),
        ({"verbose": "true"}, "--verbose='true'"),
        ({"verbose": None}, "--verbose=null"),
        ({"model": None}, "--model=null"),
        ({"model": ["mlp"]}, "--model=["),
        ({"model": 3}, "--model=3"),
        ({"run_dir": 3}, "--run_dir=3"),
        ({"run_dir": ""}, "--run_dir"),
        ({"run_dir": "a\0b"}, "--run_dir=a\\x00b"),
        ({"run_dir": "\ud800"}, "--run_dir=\\ud800"),
        ({"hidden_units": 3}, "--hidden_units=3"),
        ({"hidden_units": [[3]]}, "--hidden_units=[[3]]"),
        ({"hidden_units": [3, True]}, "--hidden_units=[3, true]"),
        ({"hidden_units": [3, None]}, "--hidden_units=[3, null]"),
        ({"hidden_units": [0]}, "--hidden_units=0"),
        ({"hidden_units": None}, "--hidden_units=null"),
        ({"hidden_units": "3,4"}, "--hidden_units='3,4'"),
        ({"input_shape": []}, "--set=data.input_shape=[]"),
    ],
    ids=short,
)
def test_a_wrong_setting_in_a_file_is_named_with_the_file(
    tmp_path: pathlib.Path, settings_: dict[str, Any], named: str
) -> None:
    file = write_config(tmp_path, settings_)
    message = refusal(file)
    assert message.startswith(file)
    assert named in message
    assert len(message.removeprefix(file)) < 400, "too long to read"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"seed": 3}, '{"run": {"seed": 3}}, or --seed='),
        ({"seed": {"value": 1}}, "'seed'"),
        ({"momentum": 0.5}, '{"optimizer": {"momentum": 0.5}}, or --set=optimizer.mom'),
        ({"model": "mlp"}, '{"model": {"model": "mlp"}}, or --model='),
        ({"run": {"model": "mlp"}}, '{"model": {"model": "mlp"}}'),
        ({"run": {"sed": 3}}, "did you mean 'seed'"),
        ({"run": {"": 3}}, "''"),
        ({"run": {"self": 3}}, "'self'"),
        ({"run": {"config": "other.json"}}, "'config'"),
        ({"run": 3}, "'run' is 3"),
        ({"run": [{"seed": 3}]}, "'run'"),
        ({"rnu": {"seed": 3}}, "did you mean 'run'"),
        ({"self": {}}, "'self'"),
        ({"": {}}, "''"),
        ({"help": True}, "'help'"),
    ],
    ids=short,
)
def test_a_file_that_is_not_nested_by_group_is_refused(
    tmp_path: pathlib.Path, content: dict[str, Any], named: str
) -> None:
    file = write_config(tmp_path, json.dumps(content))
    message = refusal(file)
    assert message.startswith(file)
    assert named in message
    assert len(message.removeprefix(file)) < 400, "too long to read"


# --set


def test_set_takes_any_setting() -> None:
    for name in ("seed", "hidden_units", "soft_placement", "model", "devices"):
        value = {"seed": "3", "hidden_units": "3,4", "model": "mlp"}.get(name, "none")
        group = all_fields()[name].group_class.group
        shared = () if name == "model" else ("--model=mlp",)
        assert parse(*shared, f"--set={group}.{name}={value}") == parse(
            *shared, f"--{name}={value}"
        )
    assert parse("--set=report.record_steps=true").report.record_steps is True
    assert parse("--set=optimizer.sparse_gradients=0").optimizer.sparse_gradients is (
        False
    )


def test_set_goes_before_the_file_and_a_flag_before_set(tmp_path: pathlib.Path) -> None:
    file = write_config(tmp_path, {"seed": 1, "step_delay_milliseconds": 3.0})
    config = parse("--seed=4", "--set=run.seed=3", file)
    assert (config.run.seed, config.length.step_delay_milliseconds) == (4, 3.0)
    delay = "--set=length.step_delay_milliseconds"
    config = parse(f"{delay}=1", f"{delay}=2", "--set=run.seed=3", file)
    assert (config.run.seed, config.length.step_delay_milliseconds) == (3, 2.0)


def test_set_collects_arms_and_takes_a_range_of_seeds() -> None:
    arms = ("--set=comparison.arm=a:", "--set=comparison.arm=b: --seed=3")
    settings = parse("--mode=compare", *arms, "--set=comparison.seeds=3-10").comparison
    assert settings.arm == ("a:", "b: --seed=3")
    assert (settings.fewest_seeds, settings.seeds) == (3, 10)
    # A flag replaces both numbers of a range.
    flags = (*arms, "--set=comparison.seeds=3-10", "--seeds=5")
    settings = parse("--mode=compare", *flags).comparison
    assert (settings.fewest_seeds, settings.seeds) == (None, 5)


def test_set_in_an_arm() -> None:
    config = parse("--mode=compare", "--arm=a:", "--arm=b: --set=model.ballast=true")
    assert [arm.config.model.ballast for arm in arms_of(config)] == [False, True]


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("", "--set=group.name=value"),
        ("momentum", "--set=optimizer.momentum="),
        ("momentum=0.5", "give --set=optimizer.momentum=0.5."),
        ("seed=3", "give --seed=3."),
        ("run.seed", "--set=group.name=value"),
        (".=", "''"),
        ("run.=3", "''"),
        ("run.sed=3", "did you mean 'seed'"),
        ("rnu.seed=3", "did you mean 'run'"),
        ("run.momentum=3", "--set=optimizer.momentum="),
        ("run.seed=x", "--seed=x"),
        ("optimizer.momentum=x", "it takes numbers"),
        ("optimizer.momentum=2", "less than 1"),
        ("optimizer.sparse_gradients=2", "true or false"),
        ("report.histogram_every_steps=0", "1 or more"),
        ("strategy.isolate_network=maybe", "auto, required, off"),
        ("optimizer.momentum=0.5", "--optimizer=momentum"),
        ("x" * 5000 + ".seed=3", "is not a group"),
        ("run." + "x" * 5000 + "=3", "is not a setting"),
        ("\0.\0=\0", "not a group"),
    ],
    ids=short,
)
def test_what_set_cannot_set_is_refused(argument: str, named: str) -> None:
    message = refusal(f"--set={argument}")
    assert named in message
    assert message.startswith(("--set=", "--seed=x"))
    assert len(message) < 500, "too long to read"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "seed: 3",
        "[]",
        "3",
        "null",
        '"seed"',
        '{"run": {"seed": 1, "seed": 2}}',
        '{"run": {}, "run": {}}',
        '{"run": {"seed": ' + "9" * 5000 + "}}",
        "[" * 100_000,
        '{"run": ' * 100_000,
        "\ufeff{}",
    ],
    ids=short,
)
def test_a_file_that_is_no_object_of_settings_is_refused(
    tmp_path: pathlib.Path, text: str
) -> None:
    file = write_config(tmp_path, text)
    message = refusal(file)
    assert message.startswith(file)
    assert len(message.removeprefix(file)) < 400, "too long to read"


def test_a_file_that_is_no_text_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(b"\xff\xfe\x00")
    assert refusal(f"--config={path}").startswith(f"--config={path}")


@pytest.mark.parametrize("name", ["missing.json", ".", "settings.json/more", "x" * 300])
def test_a_file_that_cannot_be_read_is_refused(
    tmp_path: pathlib.Path, name: str
) -> None:
    write_config(tmp_path, {})
    argument = f"--config={tmp_path}/{name}"
    assert refusal(argument).startswith(argument)


def test_an_empty_name_of_a_file_is_refused() -> None:
    assert "--config" in refusal("--config=")


def test_a_wrong_setting_in_a_file_is_refused_even_if_a_flag_goes_before_it(
    tmp_path: pathlib.Path,
) -> None:
    file = write_config(tmp_path, {"seed": "one"})
    assert "--seed='one'" in refusal(file, "--seed=1")


# There and back


def values_of(name: str) -> st.SearchStrategy[Any]:
    """Values a setting accepts by itself, drawn from its declaration."""
    group, field = all_fields()[name]
    hint, optional = field_types(group)[name]
    choices = choices_of(field)
    is_list = typing.get_origin(hint) is tuple
    item = typing.get_args(hint)[0] if is_list else hint
    if name == "devices":
        return st.none() | _lists_of_devices
    if name == "pipeline_stages":
        return st.none() | _pipeline_stages
    if choices is not None:
        values: st.SearchStrategy[Any] = st.sampled_from(choices)
    elif item is bool:
        values = st.booleans()
    elif item is str:
        # A path may have no control character in it, and no text a null.
        categories: Any = ("Cc",) if field.metadata["path"] else ()
        characters = st.characters(
            codec="utf-8", exclude_characters="\0", exclude_categories=categories
        )
        # A name of spaces is refused as an empty one.
        values = st.text(characters, min_size=1).filter(str.strip)
    elif item is float:
        values = st.floats(
            min_value=_either(field, "minimum", "above", -1e30),
            max_value=_either(field, "maximum", "below", 1e30),
            exclude_min="above" in field.metadata["bounds"],
            exclude_max="below" in field.metadata["bounds"],
        )
    else:
        values = st.integers(
            _either(field, "minimum", "above", -(2**63)),
            _either(field, "maximum", "below", 2**63 - 1),
        )
    if is_list:
        values = st.lists(values, min_size=1, max_size=4).map(tuple)
    return st.none() | values if optional else values


# A number of stages from two on, or names of layers, none of which is a number.
_pipeline_stages = st.one_of(
    st.integers(2, 9999).map(lambda count: (str(count),)),
    st.lists(st.text("abc_-é 木", min_size=1), min_size=1, max_size=4).map(tuple),
)
_lists_of_devices = st.one_of(
    st.integers(1, 9999).map(lambda count: (f"cpu:{count}",)),
    st.lists(st.integers(0, 9999), min_size=1, max_size=3, unique=True).map(
        lambda numbers: tuple(f"gpu:{number}" for number in numbers)
    ),
)


def _either(field: dataclasses.Field, one: str, other: str, default: Any) -> Any:
    bounds = field.metadata["bounds"]
    return bounds.get(one, bounds.get(other, default))


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Configurations with any accepted values that go together."""
    names = draw(st.sets(st.sampled_from(sorted(all_fields()))))
    values = {name: draw(values_of(name)) for name in sorted(names)}
    try:
        # A program refuses a setting that was given, and accepts a default.
        return Config().with_given(**values)
    except UsageError as error:
        message = str(error)
    for words in (" is not accepted", " is out of range", " is unknown", " is empty"):
        assert words not in message, "a value is refused by itself"
    return Config()


# Making a configuration of 40 fields is slow by itself on a busy machine, which
# Hypothesis would take for a fault of the test.
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(configs())
# Without the strategy that averages parameters there is no outer optimizer, and without
# that no type of its changes.
@example(Config().replace(outer_optimizer="sgd", outer_dtype="bfloat16"))
def test_a_configuration_survives_its_file_and_its_command_line(config: Config) -> None:
    settings_ = json.loads(json.dumps(config.to_dict(), allow_nan=False))
    values = {name: without_lists(value) for name, value in settings_.items()}
    assert Config().replace(**values) == config
    unspeakable = {
        name: value_of(Config(), name)
        for name, value in settings_.items()
        if any(map(_cannot_be_a_flag, value if isinstance(value, list) else [value]))
    }
    try:
        speakable = without_unused(config.replace(**unspeakable))
    except UsageError:
        return
    assert parse(*flags.arguments_of(speakable)) == speakable


def _cannot_be_a_flag(value: Any) -> bool:
    """Words that a command line reads as something else."""
    return isinstance(value, str) and (
        value.startswith("~") or value == "none" or "," in value
    )


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


# No deadline: each example writes and reads a file, which waits on a busy machine.
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
@given(st.sampled_from(sorted(all_fields())) | st.text(), json_values)
def test_any_json_is_a_configuration_or_refused(
    tmp_path: pathlib.Path, name: str, value: Any
) -> None:
    path = tmp_path / "settings.json"
    group = all_fields()[name].group_class.group if name in all_fields() else "run"
    path.write_text(json.dumps({group: {name: value}}), encoding="utf-8")
    message = f"--config={path}"
    try:
        config = config_from_file(str(path))
        path.write_text(json.dumps(config.to_file()), encoding="utf-8")
        assert config_from_file(str(path)) == config
    except UsageError as error:
        message = str(error)
    assert message.startswith(f"--config={path}")


# Settings that somebody has given, which a program does not decide then

PROGRAM = "--script=train.py"


def test_an_arm_gives_a_setting_even_with_its_default() -> None:
    base = parse(PROGRAM, "--strategy=one_device", "--dtype=float64")
    arm = flags.parse_arm(["--learning_rate=0.001"], base)
    assert {"learning_rate", "dtype"} <= arm.given
    assert "--learning_rate=0.001" in flags.arguments_of(arm)


def test_an_arm_is_an_earlier_run(tmp_path: pathlib.Path) -> None:
    """Its seed and folder are not taken over, nor what it decided for itself."""
    run = parse("--strategy=tower", "--num_replicas=3", "--seed=4", "--run_dir=before")
    content = run.replace(jit_compile="on").to_file()
    (tmp_path / "config.json").write_text(json.dumps(content), encoding="utf-8")
    file = f"--config={tmp_path / 'config.json'}"
    base = parse("--mode=compare", "--arm=a:", "--seed=2", "--train_steps=7")
    arm = flags.parse_arm([file, "--learning_rate=0.5"], base)
    assert (arm.strategy.strategy, arm.strategy.num_replicas) == ("tower", 3)
    assert (arm.run.seed, arm.run.mode, arm.run.run_dir) == (2, "compare", None)
    assert (arm.model.jit_compile, arm.optimizer.learning_rate) == ("auto", 0.5)
    of_arm = {"strategy", "num_replicas", "learning_rate"}
    assert arm.given == base.given | of_arm
    with pytest.raises(UsageError, match="--seed is a setting of the whole"):
        flags.parse_arm([write_config(tmp_path, {"seed": 3})], base)


def test_a_file_gives_all_of_its_settings(tmp_path: pathlib.Path) -> None:
    file = write_config(tmp_path, {"learning_rate": 0.001, "global_batch_size": 8})
    config = parse(file, PROGRAM, "--strategy=one_device")
    assert {"learning_rate", "global_batch_size"} <= config.given
    file = write_config(tmp_path, {"dropout": 0.0})
    assert "--dropout is decided by the program" in refusal(file, PROGRAM)


def test_a_file_of_a_run_gives_what_was_given_to_the_run(
    tmp_path: pathlib.Path,
) -> None:
    run = parse(PROGRAM, "--strategy=one_device", "--learning_rate=0.001")
    # As the program decided.
    content = run.replace(train_steps=7, global_batch_size=16).to_file()
    (tmp_path / "config.json").write_text(json.dumps(content), encoding="utf-8")
    again = parse(f"--config={tmp_path / 'config.json'}", PROGRAM)
    assert again.given == run.given
    assert again == run


def test_a_file_of_a_run_leaves_what_the_run_decided_to_the_next(
    tmp_path: pathlib.Path,
) -> None:
    run = parse("--strategy=one_device", "--model=mlp")
    content = run.replace(jit_compile="on").to_file()
    (tmp_path / "config.json").write_text(json.dumps(content), encoding="utf-8")
    file = f"--config={tmp_path / 'config.json'}"
    other = parse(file, "--strategy=tower", "--average=losses")
    assert other.model.jit_compile == "auto"
    given = parse("--strategy=one_device", "--model=mlp", "--jit_compile=on")
    (tmp_path / "config.json").write_text(json.dumps(given.to_file()))
    assert parse(file, "--strategy=tower").model.jit_compile == "on"


def test_a_file_of_a_run_does_not_choose_the_folder_of_an_experiment(
    tmp_path: pathlib.Path,
) -> None:
    content = parse("--run_dir=before", "--strategy=tower").to_file()
    (tmp_path / "config.json").write_text(json.dumps(content), encoding="utf-8")
    file = f"--config={tmp_path / 'config.json'}"
    assert parse(file, "--mode=evaluate").run.run_dir == "before"
    verified = (file, "--mode=verify", "--strategies=tower")
    assert parse(*verified).run.run_dir is None
    assert parse(*verified, "--run_dir=after").run.run_dir == "after"


@pytest.mark.parametrize("value", [3, [3], ["learning_rat"], {"learning_rate": 1}])
def test_names_in_a_file_that_are_no_settings_are_refused(
    tmp_path: pathlib.Path, value: Any
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"given": value}))
    line = refusal(f"--config={tmp_path / 'config.json'}")
    assert "given" in line or "learning_rat" in line


# --help, whose pages tests/trainers/cli/test_help.py is about


@pytest.mark.parametrize("argument", ["--help", "-h"])
def test_help_goes_before_wrong_values(argument: str) -> None:
    with pytest.raises(flags.HelpRequested):
        parse("--seed=x", argument, "stray")


# Startup

# Python with absl takes about a tenth of a second here, TensorFlow three. A busy
# machine may be five times slower and still tell the two apart.
SECONDS_WITHOUT_TENSORFLOW = 1.5

_MEASURE = """
import sys
from trainers.main import main
code = main(["main", *sys.argv[1:]])
loaded = {name.partition(".")[0] for name in sys.modules}
print(sorted(loaded & {"tensorflow", "keras", "numpy", "sklearn"}), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("argument", "exit_code"), [("--help", 0), ("--seed=x", 2), ("--strategy=x", 2)]
)
def test_help_and_refusals_are_quick_and_load_no_tensorflow(
    tmp_path: pathlib.Path, argument: str, exit_code: int
) -> None:
    seconds = []
    # The fastest of three, because a machine can be busy for a moment.
    for _ in range(3):
        start = time.perf_counter()
        finished = run_words([sys.executable, "-c", _MEASURE, argument], tmp_path)
        seconds.append(time.perf_counter() - start)
        assert finished.returncode == exit_code
        assert finished.stderr.splitlines()[-1] == "[]"
    assert min(seconds) < SECONDS_WITHOUT_TENSORFLOW


def test_a_reader_that_leaves_early_ends_help_without_an_error(
    tmp_path: pathlib.Path,
) -> None:
    finished = subprocess.run(
        f'"{sys.executable}" -m trainers.main --help | head -n 1',
        shell=True,
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert finished.stderr == ""
    assert finished.stdout.count("\n") == 1


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_text_that_cannot_be_written_is_an_error(
    flag: str, tmp_path: pathlib.Path
) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        finished = subprocess.run(
            [sys.executable, "-m", "trainers.main", flag],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env=environment(),
            text=True,
            timeout=60,
            check=False,
        )
    assert finished.returncode == 2
    assert finished.stderr.startswith("error: standard output cannot be written (No")
    assert finished.stderr.count("\n") == 1


def test_the_version_is_that_of_the_project() -> None:
    pyproject = ROOT / "pyproject.toml"
    (declared,) = re.findall(
        r'^version = "(.*)"$', pyproject.read_text(encoding="utf-8"), re.M
    )
    assert declared == version.VERSION
    with pytest.raises(flags.HelpRequested) as shown:
        parse("--version")
    assert str(shown.value).startswith(f"{declared}, Python 3.")
    for package in ("keras", "tensorflow"):
        assert f"{package} {importlib.metadata.version(package)}" in str(shown.value)
