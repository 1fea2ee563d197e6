"""Groups of settings and the fields in them, by name.

Names of settings are unique over all groups. Flags and Python code use names alone,
files and `--set` names with groups.
"""

import dataclasses
import difflib
import functools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from strategies.common.errors import UsageError
from strategies.common.fields import LONGEST_NAME, option_of
from strategies.common.text import as_json, shown
from strategies.config import StrategyConfig
from strategies.devices.config import DeviceConfig
from trainers.config.comparison import ComparisonConfig
from trainers.config.data import DataConfig
from trainers.config.fault_tolerance import GuardConfig
from trainers.config.model import ModelConfig
from trainers.config.optimizer import OptimizerConfig
from trainers.config.prediction import PredictionConfig
from trainers.config.run import LengthConfig, ReportConfig, RunConfig, ThreadsConfig
from trainers.config.tracking import TrackingConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Groups:
    """All settings of a run by group: keys of files, in the order of `--help`."""

    run: RunConfig = dataclasses.field(default_factory=RunConfig)
    strategy: StrategyConfig = dataclasses.field(default_factory=StrategyConfig)
    device: DeviceConfig = dataclasses.field(default_factory=DeviceConfig)
    threads: ThreadsConfig = dataclasses.field(default_factory=ThreadsConfig)
    length: LengthConfig = dataclasses.field(default_factory=LengthConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    report: ReportConfig = dataclasses.field(default_factory=ReportConfig)
    tracking: TrackingConfig = dataclasses.field(default_factory=TrackingConfig)
    guard: GuardConfig = dataclasses.field(default_factory=GuardConfig)
    comparison: ComparisonConfig = dataclasses.field(default_factory=ComparisonConfig)
    prediction: PredictionConfig = dataclasses.field(default_factory=PredictionConfig)


# Class of each group, by its name.
GROUPS: Mapping[str, Any] = {
    field.name: field.default_factory for field in dataclasses.fields(Groups)
}


class SettingField(NamedTuple):
    """Setting: the class of its group, and its field there."""

    group_class: Any
    field: dataclasses.Field


@functools.cache
def all_fields() -> Mapping[str, SettingField]:
    """Returns every setting by name, in the order of `--help`."""
    return {
        field.name: SettingField(group_class, field)
        for group_class in GROUPS.values()
        for field in dataclasses.fields(group_class)
    }


def defaults_of(*groups: Any) -> dict[str, Any]:
    """Returns the settings of some group classes by name, at their default values."""
    return {f.name: f.default for group in groups for f in dataclasses.fields(group)}


def option(name: str) -> str:
    """Returns the option of a setting: `--seed`, or `--set=model.ballast`."""
    return option_of(*all_fields()[name])


def by_group(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns settings by group and name, from settings by name."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        found.setdefault(all_fields()[name].group_class.group, {})[name] = value
    return found


def field_of(name: str) -> SettingField:
    """Returns a setting from its name.

    Raises:
      UsageError: No setting has this name.
    """
    if name not in all_fields():
        raise UsageError(
            f"'{shown(name)}' is not a setting: {_did_you_mean(name, all_fields())}"
            "--helpfull lists the accepted names."
        )
    return all_fields()[name]


def check_group(group: str, settings: Any) -> None:
    """Checks one entry of a nested configuration.

    Args:
      group: Name of the group.
      settings: JSON value of the group: an object of settings by name.

    Raises:
      UsageError: There is no such group, a name is not in it, or it is no object.
    """
    if not isinstance(settings, dict):
        # Such as the flat {"learning_rate": 0.1}; some groups have a setting of the
        # same name.
        if group in all_fields():
            raise _misplaced(group, settings)
        if group in GROUPS:
            raise UsageError(
                f"'{group}' is {shown(settings)}, not an object of settings by name: "
                f'give "{group}": {{...}}.'
            )
    if group not in GROUPS:
        raise UsageError(
            f"'{shown(group)}' is not a group of settings: "
            f"{_did_you_mean(group, GROUPS)}choose one of {', '.join(GROUPS)}."
        )
    known = defaults_of(GROUPS[group])
    for name, value in settings.items():
        if name in known:
            continue
        if name in all_fields():
            raise _misplaced(name, value)
        raise UsageError(
            f"'{shown(name)}' is not a setting of the group '{group}': "
            f"{_did_you_mean(name, all_fields())}--helpfull lists the accepted names."
        )


def _misplaced(name: str, value: Any) -> UsageError:
    group = all_fields()[name].group_class.group
    return UsageError(
        f"'{name}' is a setting of the group '{group}': give "
        f'{{"{group}": {{"{name}": {shown(as_json(value))}}}}}, or {option(name)}=.'
    )


# Names that other programs give to settings of this one, and earlier names here: a
# setting, or several of which one may be meant -> its other names.
_NAMES = {
    "run_dir": "checkpoint_dir experiment_dir job_dir log_dir logdir model_dir name "
    "out out_dir output output_dir output_path run_name save_dir train_dir work_dir",
    "resume": "ckpt ckpt_path continue load restore resume_from resume_from_checkpoint",
    "seed": "random_seed rng rng_seed",
    "verbose": "debug log_level verbosity",
    "strategy": "distribute distribution distribution_strategy distributed strat",
    "num_replicas devices": "cpu cpus device gpu gpu_ids gpus gpus_per_node n_gpus "
    "ngpu ngpus nproc nproc_per_node num_devices num_gpu num_gpus num_towers towers",
    "num_workers": "hosts n_nodes nnodes nodes num_hosts num_machines num_nodes "
    "num_processes workers world_size",
    "num_ps": "num_servers parameter_servers ps servers",
    "intra_op_threads inter_op_threads": "num_threads",
    "train_steps": "iterations iters max_iters max_steps n_steps num_iterations "
    "num_steps num_train_steps steps training_steps",
    "epochs": "max_epochs n_epochs num_epochs num_train_epochs training_epochs",
    "global_batch_size": "bs train_batch_size",
    "gradient_accumulation_steps": "accum accum_steps accumulate "
    "accumulate_grad_batches grad_accum grad_accum_steps grad_accumulation_steps",
    "initial_weights": "checkpoint init init_checkpoint init_from load_weights "
    "pretrained pretrained_weights weights",
    "dtype": "amp bf16 dtype_policy float16 float32 float64 fp16 fp32 half "
    "mixed_precision precision",
    "jit_compile": "compile jit xla",
    "data_path": "data_dir data_root data_file dataset_dir dataset_path input_path "
    "train_data train_files",
    "optimizer": "opt optim",
    "learning_rate_schedule": "decay lr_decay lr_scheduler scheduler",
    "clip_global_norm": "clip clip_norm clipnorm global_clipnorm grad_clip "
    "grad_clip_norm gradient_clip gradient_clip_norm gradient_clip_val grad_norm "
    "max_grad_norm",
    "summary_every_steps": "log_every log_every_n_steps log_interval log_steps "
    "logging_steps",
    "checkpoint_every_steps": "checkpoint_every save_every save_interval save_steps",
    "eval_every_steps": "eval_interval eval_steps val_interval",
    "profile_steps": "profiler trace",
    "trackers": "logger mlflow tracker wandb",
    "gradient_reduction": "combine",
    "isolate_network": "confine_cluster",
    "num_microbatches": "micro_batches num_micro_batches",
    "pipeline_stages": "num_stages stages",
    "disable_layers": "switch_off",
    "replayable_random_numbers": "replayable_dropout",
    "emulated_bandwidth_mbit bandwidth_gbit": "bandwidth",
}

OTHER_NAMES: Mapping[str, Sequence[str]] = {
    name: meant.split() for meant, names in _NAMES.items() for name in names.split()
}

# More would say nothing.
_MOST_SUGGESTIONS = 4


def nearest(name: str, known: Collection[str]) -> list[str]:
    """Returns known names that a misspelt or shortened one, such as `lr`, may mean."""
    if len(name) > LONGEST_NAME:
        return []
    meant = OTHER_NAMES.get(name.replace("-", "_"), ())
    if known_of_those := [other for other in meant if other in known]:
        return known_of_those
    words = set(re.split("[-_]", name))
    found = [
        other
        for other in known
        if words <= {*other.split("_")}
        or (len(name) > 1 and name == "".join(w[0] for w in other.split("_")))
    ]
    fewest = min((other.count("_") for other in found), default=0)
    found = [other for other in found if other.count("_") == fewest]
    if len(found) > _MOST_SUGGESTIONS:
        return []
    return found or difflib.get_close_matches(name, known, n=1)


def _did_you_mean(name: str, known: Collection[str]) -> str:
    names = " or ".join(repr(other) for other in nearest(name, known))
    return f"did you mean {names}? " if names else ""
