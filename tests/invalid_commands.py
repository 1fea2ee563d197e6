"""Wrong command lines, by how much the program has to load to refuse them."""

import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Callable

from strategies import registry
from trainers.config.groups import by_group

SMALL_RUN = ("--model=mlp", "--hidden_units=8", "--train_steps=20")
WIDE = ("--model=wide_embedding", "--dataset=clicks")


@dataclasses.dataclass(frozen=True)
class Row:
    """A wrong command line.

    Attributes:
      arguments: Arguments of the program.
      named: Texts that the message must contain.
      prepare: Function that makes the files named by the arguments in the working
        directory.
    """

    arguments: tuple[str, ...]
    named: tuple[str, ...]
    prepare: Callable[[pathlib.Path], object] = lambda folder: None

    def __str__(self) -> str:
        return " ".join(self.arguments).encode("unicode_escape").decode()[:60]


def row(
    arguments: str, *named: str, prepare: Callable[[pathlib.Path], object] | None = None
) -> Row:
    """Returns a row whose arguments hold no spaces."""
    return Row(tuple(arguments.split(" ")), named, prepare or (lambda folder: None))


def write(name: str, content: str | bytes) -> Callable[[pathlib.Path], object]:
    """Returns a function that writes a file into the working directory."""

    def prepare(folder: pathlib.Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(data)

    return prepare


# The program refuses these before it loads TensorFlow.
BEFORE_TENSORFLOW = [
    row("--strategy=magic", "--strategy=magic", ", ".join(registry.names())),
    row("--strategy=", "--strategy= ", "mirrored"),
    row("--strategy=Mirrored", "--strategy=Mirrored"),
    row("--strateg=tower", "--strateg ", "--strategy"),
    row("--num-replicas=2", "--num-replicas", "--num_replicas"),
    row("--batch_size=64", "--batch_size"),
    row("--nomodel", "--nomodel", "--model"),
    row("train", "'train'", "--name=value"),
    row("--seed=1 more", "'more'", "--name=value"),
    row("\u2013strategy=tower", "another dash; give --strategy=tower."),
    row("--run_dir=a\nb", "--run_dir=a\\nb ", "no line break"),
    row("--model=a.py", "--model=a.py", "a.py:FUNCTION", "--script=a.py"),
    row("--dataset=a.py", "--dataset=a.py", "a.py:FUNCTION"),
    row("a.py --seed=1", "'a.py'", "--script=a.py"),
    row("-- --seed=1", "--seed=1", "--script"),
    row(
        "--script=a.ipynb",
        *("--script=a.ipynb", "notebook", "nbconvert", "trainers.fit"),
        prepare=write("a.ipynb", '{"cells": []}'),
    ),
    row(
        "--script=README.md",
        *("--script=README.md, line 3, is not Python", "invalid syntax"),
        prepare=write("README.md", "# Title\n\nSome *text*\n"),
    ),
    row(
        "--script=a.py --strategy=multi_worker_mirrored",
        *("--script=a.py, line 2, is not Python", "'(' was never closed"),
        prepare=write("a.py", "import keras\nx = (1,\n"),
    ),
    row(
        "--script=a.py",
        *("--script=a.py, line 2, is not Python", "null bytes"),
        prepare=write("a.py", b"import keras\nx = 1\0\n"),
    ),
    row("--script=.", "--script=. is no file"),
    row("--seed", "--seed", "--name=value"),
    row("--seed=", "--seed=", "whole numbers"),
    row("--seed=-1", "--seed=-1", "0 or more"),
    row("--seed=1.5", "--seed=1.5", "whole numbers"),
    row("--seed=4294967296", "--seed=4294967296", "at most 2147483647"),
    row("--seed=" + "9" * 5000, "--seed=999", "whole numbers"),
    row("--train_steps=0", "--train_steps=0", "1 or more"),
    row("--train_steps=1e3", "--train_steps=1e3", "whole numbers"),
    row("--train_steps=" + "9" * 400, "--train_steps=999", "at most 9223372"),
    row("--train_steps=5 --epochs=2", "--train_steps=5", "--epochs=2"),
    row("--global_batch_size=0", "--global_batch_size=0", "1 or more"),
    row("--steps_per_loop=0", "--steps_per_loop=0", "1 or more"),
    row("--steps_per_loop=9999999999", "--steps_per_loop=9999999999", "at most"),
    row(
        "--strategy=parameter_server --steps_per_loop=16385",
        "--steps_per_loop=16385",
        "--update=async",
    ),
    row("--num_replicas=0 --strategy=tower", "--num_replicas=0", "1 or more"),
    row("--num_replicas=two", "--num_replicas=two", "whole numbers"),
    row("--num_replicas=2", "--num_replicas=2", "--strategy=one_device"),
    row(
        "--strategy=mirrored --num_replicas=8 --global_batch_size=7",
        "--global_batch_size=7",
        "--num_replicas=8",
    ),
    row("--gradient_accumulation_steps=0", "--gradient_accumulation_steps=0", "1 or"),
    row(
        "--gradient_accumulation_steps=65",
        "--global_batch_size=64",
        "--gradient_accumulation_steps=65",
    ),
    row(
        "--strategy=tower --num_replicas=3 --gradient_accumulation_steps=22",
        "--num_replicas=3 x --gradient_accumulation_steps=22",
    ),
    row(
        "--pipeline_stages=2",
        "--pipeline_stages=2",
        "--strategy=one_device",
        "model_parallel",
    ),
    row(
        "--set=strategy.num_microbatches=2 --strategy=tower",
        "--set=strategy.num_microbatches=2",
        "tower",
    ),
    row(
        "--pipeline_stages=1 --strategy=model_parallel",
        "--pipeline_stages=1",
        "2 or more",
    ),
    row(
        "--pipeline_stages=0 --strategy=model_parallel",
        "--pipeline_stages=0",
        "2 or more",
    ),
    row("--pipeline_stages= --strategy=model_parallel", "--pipeline_stages="),
    row(
        "--set=strategy.num_microbatches=0 --strategy=model_parallel",
        "--set=strategy.num_microbatches=0",
        "1 or more",
    ),
    row(
        "--set=strategy.num_microbatches=9 --gradient_accumulation_steps=8"
        " --strategy=model_parallel",
        "--global_batch_size=64",
        "--gradient_accumulation_steps=8 x --set=strategy.num_microbatches=9",
    ),
    row("--num_replicas=2 --strategy=model_parallel", "--num_replicas=2", "at most 1"),
    row(
        "--set=strategy.isolate_network=yes",
        "--set=strategy.isolate_network=yes",
        "auto, required, off",
    ),
    row(
        "--set=strategy.isolate_network=",
        "--set=strategy.isolate_network= ",
        "auto, required, off",
    ),
    *(
        row(
            f"--emulated_bandwidth_mbit={rate} --strategy=multi_worker_mirrored",
            f"--emulated_bandwidth_mbit={shown}",
            accepted,
        )
        for rate, shown, accepted in (
            ("0", "0", "more than 0"),
            ("-100", "-100", "more than 0"),
            ("nan", "nan", "more than 0"),
            ("1e6", "1000000", "at most 100000"),
            ("inf", "inf", "at most 100000"),
            ("fast", "fast", "number"),
            ("", "", "number"),
        )
    ),
    row(
        "--emulated_bandwidth_mbit=100 --set=strategy.isolate_network=off"
        " --strategy=parameter_server",
        "--set=strategy.isolate_network=off",
        "--emulated_bandwidth_mbit=100",
    ),
    row("--allow_remote_hosts=some", "--allow_remote_hosts=some", "true"),
    row("--devices=", "--devices= ", "gpu:0,gpu:2"),
    row("--devices=tpu:0", "--devices=tpu:0", "'tpu:0' is no device", "cpu:4"),
    row("--devices=/gpu:0", "--devices=/gpu:0", "is no device"),
    row("--devices=gpu:0,", "--devices=gpu:0, ", "'' is no device"),
    row("--devices=cpu:0", "--devices=cpu:0", "at least 1"),
    row("--devices=cpu:0,cpu:1", "--devices=cpu:0,cpu:1", "is how many"),
    row("--devices=gpu:0,cpu:1", "--devices=gpu:0,cpu:1", "not on both"),
    row("--devices=gpu:1,gpu:1", "--devices=gpu:1,gpu:1", "gpu:1 is listed twice"),
    row("--devices=cpu:2", "--devices=cpu:2", "--strategy=one_device", "at most 1"),
    row(
        "--strategy=tower --devices=cpu:4 --num_replicas=2",
        "--devices=cpu:4",
        "--num_replicas=2",
    ),
    row(
        "--strategy=tower --devices=gpu:0,gpu:1,gpu:2 --global_batch_size=2",
        "--global_batch_size=2",
        "the 3 replicas of --devices=gpu:0,gpu:1,gpu:2",
    ),
    row(
        "--strategy=multi_worker_mirrored --devices=gpu:0",
        "--devices=gpu:0",
        "--strategy=multi_worker_mirrored",
        "CUDA_VISIBLE_DEVICES",
    ),
    row("--soft_placement=perhaps", "--soft_placement=perhaps", "true or false"),
    row(
        "--set=device.memory_limit_mib=0",
        "--set=device.memory_limit_mib=0",
        "1 or more",
    ),
    row(
        "--set=device.memory_fraction=0",
        "--set=device.memory_fraction=0",
        "more than 0",
    ),
    row(
        "--set=device.memory_fraction=1.5",
        "--set=device.memory_fraction=1.5",
        "at most 1",
    ),
    row(
        "--memory_growth --set=device.memory_fraction=0.5",
        "--memory_growth and --set=device.memory_frac",
    ),
    row(
        "--set=device.memory_limit_mib=9 --set=device.memory_fraction=0.5",
        "--set=device.memory_limit_mib=9 and --set=device.memory_fraction=0.5",
    ),
    row("--memory_growth --devices=cpu:1", "--memory_growth", "--devices=cpu:1"),
    row(
        "--strategy=parameter_server --set=device.memory_fraction=0.5",
        "--set=device.memory_fraction=0.5",
        "--strategy=parameter_server",
    ),
    row(
        "--strategy=parameter_server --log_device_placement",
        "--log_device_placement",
        "--strategy=parameter_server",
    ),
    row("--learning_rate=nan", "--learning_rate=nan", "more than 0"),
    row("--learning_rate=inf", "--learning_rate=inf", "at most"),
    row("--learning_rate=0", "--learning_rate=0", "more than 0"),
    row("--learning_rate=-0.1", "--learning_rate=-0.1", "more than 0"),
    row("--learning_rate=fast", "--learning_rate=fast", "numbers"),
    row("--dropout=1", "--dropout=1", "less than 1"),
    row(
        "--set=optimizer.momentum=0.5",
        "--set=optimizer.momentum=0.5",
        "--optimizer=momentum",
    ),
    row(
        "--set=strategy.gradient_reduction=product --strategy=tower",
        "--set=strategy.gradient_reduction=product",
        "mean, sum",
    ),
    row(
        "--set=strategy.gradient_reduction=sum",
        "--set=strategy.gradient_reduction=sum",
        "--strategy=one_device",
    ),
    row(
        "--set=strategy.gradient_reduction=sum --strategy=parameter_server",
        "--set=strategy.gradient_reduction=sum",
        "--strategy=parameter_server",
    ),
    row(
        "--set=strategy.gradient_reduction=sum --strategy=parameter_server "
        "--update=sync "
        "--num_workers=3 --backup_workers=1",
        "--set=strategy.gradient_reduction=sum",
        "--backup_workers=1",
    ),
    row(
        "--set=strategy.gradient_reduction=sum --strategy=parameter_averaging",
        "--set=strategy.gradient_reduction=sum",
        "gradients",
    ),
    row(
        "--set=strategy.gradient_reduction=sum --strategy=tower --update=async",
        "--set=strategy.gradient_reduction=sum",
        "--update=async",
    ),
    row("--update=async --strategy=mirrored", "--update=async", "no --update"),
    row("--max_restarts=2", "--max_restarts=2", "--strategy=one_device"),
    row("--strategy=parameter_server --max_restarts=-1", "--max_restarts=-1", "0"),
    row("--strategy=parameter_server --max_restarts=x", "--max_restarts=x"),
    row(
        "--strategy=tower --update=sync --backup_workers=1",
        "--backup_workers=1",
        "--strategy=parameter_server",
    ),
    row(
        "--strategy=tower --update=async --set=report.record_steps=true",
        "--set=report.record_steps=true",
        "--update=async",
    ),
    row("--average=median --strategy=tower", "--average=median", "losses"),
    row("--average=gradients", "--strategy=one_device", "--strategy=mirrored"),
    row("--average=losses --strategy=mirrored", "--average=losses", "--strategy=tower"),
    row(
        "--average=losses --strategy=tower --update=async",
        "--average=losses",
        "--update=async",
    ),
    row(
        "--average=losses --strategy=tower --gradient_accumulation_steps=2",
        "--gradient_accumulation_steps=2",
        "--average=losses",
    ),
    row(
        "--average=losses --strategy=tower --jit_compile=on",
        "--average=losses",
        "--jit_compile=on",
    ),
    row(
        "--average=parameters --strategy=tower",
        "--average=parameters",
        "--strategy=parameter_averaging",
    ),
    row(
        "--average=gradients --strategy=parameter_averaging",
        "--average=gradients",
        "parameters",
    ),
    row(
        "--sync_every_steps=5 --strategy=tower",
        "--sync_every_steps=5",
        "--strategy=parameter_averaging",
    ),
    row(
        "--average=losses --strategy=multi_worker_mirrored",
        "--average=losses",
        "gradients or parameters",
    ),
    row(
        "--sync_every_steps=5 --strategy=multi_worker_mirrored",
        "--sync_every_steps=5",
        "--strategy=multi_worker_mirrored",
        "--average=parameters",
    ),
    row(
        "--set=strategy.average_optimizer_state=true --strategy=multi_worker_mirrored "
        "--average=gradients",
        "--set=strategy.average_optimizer_state=true",
        "--average=parameters",
    ),
    row(
        "--average=parameters --strategy=multi_worker_mirrored --num_replicas=2",
        "--num_replicas=2",
        "--num_workers",
    ),
    row(
        "--average=parameters --strategy=multi_worker_mirrored "
        "--set=strategy.gradient_reduction=sum",
        "--set=strategy.gradient_reduction=sum",
        "--average=parameters",
    ),
    row(
        "--average=parameters --strategy=multi_worker_mirrored "
        "--all_reduce_dtype=bfloat16",
        "--all_reduce_dtype=bfloat16",
        "--average=parameters",
    ),
    *(
        row(
            f"--strategy=multi_worker_mirrored --average=parameters {setting} "
            "--outer_optimizer=nesterov",
            setting,
            accepted,
        )
        for setting, accepted in (
            ("--outer_learning_rate=0", "more than 0"),
            ("--outer_learning_rate=-0.7", "more than 0"),
            ("--set=strategy.outer_momentum=-0.1", "0 or more"),
            ("--set=strategy.outer_momentum=1", "less than 1"),
            ("--outer_dtype=int8", "as_is, bfloat16, float16"),
            ("--outer_fragments=0", "1 or more"),
            ("--outer_fragments=11", "--sync_every_steps=10"),
        )
    ),
    *(
        row(
            f"--strategy=parameter_averaging {setting}",
            setting,
            "--outer_optimizer=none",
            "--outer_optimizer=sgd or nesterov",
        )
        for setting in (
            "--outer_learning_rate=0.7",
            "--set=strategy.outer_momentum=0.9",
            "--outer_dtype=bfloat16",
            "--outer_fragments=2",
        )
    ),
    row(
        "--outer_optimizer=adam --strategy=parameter_averaging",
        "--outer_optimizer=adam",
        "none, sgd, nesterov",
    ),
    row(
        "--outer_optimizer=nesterov --strategy=multi_worker_mirrored",
        "--outer_optimizer=nesterov",
        "--average=parameters",
    ),
    row(
        "--outer_optimizer=sgd --strategy=mirrored",
        "--outer_optimizer=sgd",
        "--strategy=parameter_averaging",
    ),
    row(
        "--average=parameters --strategy=multi_worker_mirrored "
        "--gradient_compression=int8",
        "--gradient_compression=int8",
        "--average=parameters",
    ),
    row(
        "--strategy=multi_worker_mirrored --all_reduce_dtype=bfloat16 "
        "--gradient_compression=int8",
        "--gradient_compression=int8",
        "--all_reduce_dtype=bfloat16",
    ),
    *(
        row(
            f"--strategy=multi_worker_mirrored --gradient_compression={value}",
            f"--gradient_compression={value} ",
            "powersgd:RANK",
            "topk:FRACTION",
        )
        for value in (
            *("powersgd", "powersgd:", "powersgd:0", "powersgd:-1", "powersgd:1.5"),
            *("powersgd:four", "topk", "topk:0", "topk:1.01", "topk:nan", "topk:1e"),
            *("int8:4", "int4", "PowerSGD:4", "topk:1_0", "powersgd:" + "9" * 30),
        )
    ),
    row(
        "--strategy=multi_worker_mirrored --gradient_compression=int8 "
        "--shard_optimizer_state",
        "--gradient_compression=int8",
        "--shard_optimizer_state",
    ),
    *(
        row(
            f"--strategy=parameter_server --gradient_compression=topk:0.1{flags}",
            "--gradient_compression=topk:0.1",
            remedy,
        )
        for flags, remedy in (
            ("", "add --update=sync"),
            (" --update=async", "add --update=sync"),
            (" --update=sync --backup_workers=1", "--backup_workers=1"),
        )
    ),
    row(
        "--shard_optimizer_state --strategy=mirrored",
        "--shard_optimizer_state",
        "--strategy=multi_worker_mirrored",
    ),
    row(
        "--shard_optimizer_state --strategy=multi_worker_mirrored --average=parameters",
        "--shard_optimizer_state",
        "--average=parameters",
    ),
    row(
        "--sync_every_steps=0 --strategy=parameter_averaging",
        "--sync_every_steps=0",
        "1 or more",
    ),
    row(
        "--set=strategy.average_optimizer_state=true --strategy=mirrored",
        "--set=strategy.average_optimizer_state=true",
        "--strategy=parameter_averaging",
    ),
    row("--lr_scaling=cubic", "--lr_scaling=cubic", "linear, sqrt"),
    row("--lr_scaling=linear", "--lr_scaling=linear", "--base_global_batch_size"),
    row(
        "--base_global_batch_size=64",
        "--base_global_batch_size=64",
        "--lr_scaling=linear",
    ),
    row(
        "--lr_scaling=sqrt --base_global_batch_size=0",
        "--base_global_batch_size=0",
        "1 or more",
    ),
    row("--optimizer=lion", "--optimizer=lion", "adamw"),
    row("--dtype=float16", "--dtype=float16", "mixed_bfloat16"),
    row("--model=resnet999", "--model=resnet999", "convnet, mlp", "keras:NAME"),
    row("--model=resnet50", "--model=resnet50", "or keras:ResNet50"),
    row(
        "--model=keras:InceptonResNetV2",
        "--model=keras:InceptonResNetV2",
        "near it: keras:InceptionResNetV2",
        "classifiers of keras.applications",
    ),
    row("--hidden_units=", "--hidden_units=", "whole numbers"),
    row("--hidden_units=3,", "--hidden_units=3,", "whole numbers"),
    row("--hidden_units=3,0", "--hidden_units=0", "1 or more"),
    row("--dataset=imagenet", "--dataset=imagenet", "digits"),
    row("--dataset=tfrecord", "--dataset=tfrecord", "--data_path"),
    row("--data_path=some.tfrecord", "--data_path=some.tfrecord", "--dataset=tfrecord"),
    row("--dataset=cifar10 --eval_data_path=a", "--eval_data_path=a", "=cifar10"),
    row("--sharding=record", "--sharding=record", "exact, example, file"),
    row("--sharding=file", "--sharding=file", "--dataset=digits"),
    row(
        "--dataset=tfrecord --data_path=a --sharding=example",
        "--sharding=example",
        "--eval_data_path",
    ),
    row(
        "--dataset=tfrecord --data_path=a --eval_data_path=b --sharding=example"
        " --strategy=parameter_server",
        "--sharding=example",
        "--strategy=parameter_server",
        "one_device or tower",
    ),
    row(
        "--set=data.shuffle_buffer_examples=5",
        "--set=data.shuffle_buffer_examples=5",
        "=exact",
    ),
    row(
        "--set=data.shuffle_buffer_examples=0",
        "--set=data.shuffle_buffer_examples=0",
        "1 or more",
    ),
    row(
        "--set=data.augmentation=false",
        "--set=data.augmentation=false",
        "--dataset=digits",
    ),
    row("--set=data.eval_fraction=1", "--set=data.eval_fraction=1", "less than 1"),
    row(
        "--set=data.input_shape=28x28",
        "--set=data.input_shape=28x28",
        "separated by commas",
    ),
    row(
        "--dataset=synthetic --set=data.num_examples=999999999",
        "--set=data.num_examples=999999999",
        "--set=data.input_shape=32,32,3",
    ),
    row(
        "--dataset=clicks --set=data.num_categories=999999999",
        "--set=data.num_categories=999999999",
        "--set=data.num_columns=8",
    ),
    row("--checkpoint_every_steps=0", "--checkpoint_every_steps=0", "1 or more"),
    row(
        "--set=report.keep_checkpoints=0",
        "--set=report.keep_checkpoints=0",
        "1 or more",
    ),
    row("--on_divergence=restart", "--on_divergence=restart", "stop, rollback"),
    row(
        "--set=guard.max_rollbacks=2",
        "--set=guard.max_rollbacks=2",
        "--on_divergence=rollback",
    ),
    row(
        "--on_divergence=rollback --set=guard.max_rollbacks=0",
        "--set=guard.max_rollbacks=0",
        "1 or more",
    ),
    row(
        "--set=guard.stall_timeout_seconds=0",
        "--set=guard.stall_timeout_seconds=0",
        "more than 0",
    ),
    row(
        "--set=guard.stall_timeout_seconds=soon",
        "--set=guard.stall_timeout_seconds=soon",
        "numbers",
    ),
    row("--mode=verifry", "--mode=verifry", "train"),
    row("--mode=evaluate", "--mode=evaluate", "--run_dir"),
    row("--resume=always", "--resume=always", "auto"),
    row("--strategies=tower,mirrored", "--strategies", "--mode=compare"),
    row("--mode=compare", "--mode=compare", "--strategies"),
    row(
        "--mode=compare --strategies=tower,mirrored --eval_every_steps=none "
        "--set=comparison.target_accuracy=0.9",
        *("comparison.target_accuracy", "--eval_every_steps=none"),
    ),
    row("--resume=auto", "--resume=auto", "--run_dir"),
    row(
        "--mode=explain --resume=auto --run_dir=run",
        *("--resume=auto is not used by --mode=explain", "--mode=train or doctor"),
    ),
    row("--mode=compare --strategies=tower", "only one arm, 'tower'"),
    row("--mode=compare --strategies=tower,magic", "--strategies=magic", "mirrored"),
    row("--mode=compare --strategies=tower,tower", "--strategies", "'tower' twice"),
    row(
        "--mode=compare --strategies=tower,mirrored --strategy=one_device",
        "--strategy=one_device",
        "--strategies=tower,mirrored",
    ),
    row("--mode=compare --strategies=tower,mirrored --runs=runs", "--runs"),
    row("--mode=compare --strategies=tower,mirrored --seeds=0", "--seeds=0"),
    row(
        "--mode=compare --strategies=tower,mirrored --seeds=10-3",
        "--seeds=10-3 ends before it begins",
        "--seeds=3-10",
    ),
    row("--mode=compare --strategies=tower,mirrored --seeds=3-", "--seeds=3-"),
    row(
        "--mode=compare --strategies=tower,mirrored --seeds=2-10",
        "the first number of --seeds=2",
        "3 or more",
    ),
    row(
        "--mode=compare --strategies=tower,mirrored --seeds=3-10 --until=seeds",
        "--seeds=3-10 is a range",
        "--until=seeds",
    ),
    row(
        "--mode=compare --strategies=tower,mirrored --seeds=2 --until=verdict",
        "--until=verdict with --seeds=2",
        "3 or more",
    ),
    row(
        "--mode=compare --strategies=tower,mirrored --until=certainty",
        "--until=certainty",
        "seeds, verdict",
    ),
    row("--mode=compare --runs=runs --until=verdict", "--until=verdict", "--runs"),
    row(
        "--mode=compare --strategies=tower,mirrored --drop_losers",
        "--drop_losers",
        "--until=verdict",
    ),
    row(
        "--mode=compare --strategies=tower,mirrored --tune_runs=4",
        "--tune_runs=4",
        "--tune=",
    ),
    row(
        "--mode=compare --strategies=tower,mirrored "
        "--tune_runs=1 --tune=learning_rate:1e-4..1e-1",
        "--tune_runs=1",
        "2 or more",
    ),
    row(
        "--mode=compare --strategies=tower,mirrored --tune=learning_rate",
        "--tune=learning_rate",
        "name:low..high",
    ),
    row(
        "--mode=compare --strategies=tower,mirrored --tune=learning_rate:0.1",
        "--tune=learning_rate:0.1",
        "name:low..high",
    ),
    row(
        "--mode=compare --strategies=tower,mirrored --tune=learning_rat:1e-4..1e-1",
        "'learning_rat' is not a setting",
        "'learning_rate'",
    ),
    row(
        "--mode=compare --strategies=tower,mirrored "
        "--tune=model.learning_rate:1e-4..1e-1",
        "group 'optimizer'",
        "--learning_rate",
    ),
    row(
        "--mode=compare --strategies=tower,mirrored --tune=optimizer:1..2",
        "--tune=optimizer:1..2",
        "not one number",
    ),
    row(
        "--mode=compare --strategies=tower,mirrored --tune=hidden_units:8..64",
        "--hidden_units",
        "not one number",
    ),
    row(
        "--mode=compare --strategies=tower,mirrored --tune=learning_rate:low..high",
        "low..high",
        "--learning_rate are numbers",
    ),
    row(
        "--mode=compare --strategies=tower,mirrored --tune=warmup_steps:1.5..8",
        "--warmup_steps",
        "whole numbers",
    ),
    row(
        "--mode=compare --strategies=tower,mirrored --tune=learning_rate:1e-1..1e-4",
        "1e-1 is not below 1e-4",
        "smaller",
    ),
    row(
        "--mode=compare --strategies=tower,mirrored --tune=learning_rate:0..1e-1",
        "--learning_rate=0 ",
        "more than 0",
    ),
    row(
        "--mode=compare --strategies=tower,mirrored --tune=learning_rate:nan..1",
        "--learning_rate=nan",
        "more than 0",
    ),
    row(
        "--mode=compare --strategies=tower,mirrored --tune=dropout:0..1",
        "--dropout=1 ",
        "less than 1",
    ),
    row(
        "--mode=compare --strategies=tower,mirrored --tune=global_batch_size:8..64",
        "--global_batch_size",
        "the global batch",
    ),
    row(
        "--mode=compare --strategies=tower,mirrored --tune=seed:1..9",
        "--seed",
        "the seeds",
    ),
    row(
        "--mode=compare --strategies=tower,mirrored --tune=seeds:1..9",
        "--seeds is not used by the arm tower",
        "--mode=train",
    ),
    row(
        "--mode=compare --strategies=tower,mirrored --tune=optimizer.momentum:0.1..0.9",
        "--set=optimizer.momentum is not used by the arm tower",
        "--optimizer=adam",
    ),
    row(
        "--mode=compare --strategies=tower,one_device --tune=num_replicas:1..4",
        "--num_replicas",
        "one_device",
    ),
    row(
        "--mode=compare --strategies=tower,mirrored "
        "--train_steps=7 --tune=learning_rate:1e-4..1e-1",
        "--train_steps=7 is too few to halve",
        "give 8 or more",
    ),
    row(
        "--mode=compare --strategies=tower,mirrored "
        "--epochs=2 --tune=learning_rate:1e-4..1e-1",
        "--tune=learning_rate",
        "--train_steps",
    ),
    row(
        "--mode=compare --runs=runs --tune=learning_rate:1e-4..1e-1",
        "--tune=learning_rate",
        "--runs",
    ),
    Row(
        (
            *("--mode=compare", "--arm=a: --learning_rate=0.5", "--arm=b:"),
            "--tune=learning_rate:1e-4..1e-1",
        ),
        ("the arm a gives --learning_rate=0.5 itself", "outside of --arm"),
    ),
    row(
        "--mode=compare --strategies=tower,mirrored "
        "--set=comparison.allow_different=optimizer",
        "--set=comparison.allow_different=optimizer",
    ),
    row(
        "--mode=compare --strategies=tower,mirrored --num_replicas=9"
        " --global_batch_size=8",
        "--global_batch_size=8",
        "--num_replicas=9",
    ),
    row("--mode=compare --arm=a --arm=b:", "--arm=a is", "'name: flags'"),
    row("--mode=compare --arm=a: --arm=a:", "'a:' twice"),
    row("--mode=compare --arm=../a: --arm=b:", "--arm=../a:", "'../a'"),
    row("--mode=compare --runs=nowhere", "--runs=nowhere"),
    Row(("--mode=compare", "--arm=a:", "--arm=a: --jit"), ("--arm=a: --jit", "--jit")),
    Row(("--mode=compare", "--arm=a:", "--arm=b: --seed=3"), ("--arm=b", "--seed")),
    Row(("--mode=compare", "--arm=a:", "--arm=b: --help"), ("--arm=b", "--help")),
    Row(("--mode=compare", "--arm=a:", "--arm=b: '"), ("--arm=b", "quot")),
    Row(
        (
            *("--mode=compare", "--arm=a:"),
            "--arm=b: --strategy=parameter_server --update=sync --backup_workers=2",
        ),
        ("--arm=b", "--backup_workers=2 of 2 workers"),
    ),
    Row(
        ("--mode=compare", "--arm=a: --learning_rate=1", "--arm=a: --learning_rate=2"),
        ("two arms are called 'a'",),
    ),
    Row(
        ("--mode=compare", "--arm=a: --model=mlp", "--arm=b:"),
        (
            "the initial weights",
            "--model=mlp (a)",
            "(b)",
            "--set=comparison.allow_different",
        ),
    ),
    *(
        Row(
            ("--mode=compare", *WIDE, "--arm=a:", f"--arm=b: --set={setting}"),
            (named, f"--set={setting} (b)", "--set=comparison.allow_different"),
        )
        for setting, named in (
            ("model.embedding_dimension=8", "the initial weights"),
            ("model.perturb_initial_weights=true", "the initial weights"),
            ("data.num_columns=4", "the order of examples"),
            ("data.num_categories=8", "the order of examples"),
        )
    ),
    row(
        "--mode=compare --strategies=tower,mirrored --run_dir=other",
        "--run_dir=other",
        prepare=write("other/notes.txt", "mine"),
    ),
    row(
        "--mode=compare --strategies=tower,mirrored --run_dir=other",
        "plan.json is damaged",
        prepare=write("other/plan.json", "{"),
    ),
    row("--mode=doctor --script=a.py", "--script=a.py", "--mode=doctor"),
    row(
        "--mode=predict --strategies=mirrored --script=a.py",
        *("--script=a.py", "--global_batch_size"),
        prepare=write("a.py", "mine"),
    ),
    row(
        "--mode=explain --strategy=tower --average=losses",
        *("--average=losses", "--mode=explain"),
    ),
    row("--mode=explain --strategies=tower", "--strategies=tower", "--mode"),
    row(
        "--mode=explain --strategy=parameter_server --update=sync --num_workers=2 "
        "--backup_workers=1",
        *("--backup_workers=1", "--mode=explain"),
    ),
    row(
        "--mode=predict --strategy=parameter_server --update=sync "
        "--strategies=parameter_server --backup_workers=1",
        *("--backup_workers=1", "--mode=predict"),
    ),
    row("--mode=predict", "--mode=predict", "--strategies"),
    row("--replicas=4", "--replicas=4", "--num_replicas", "--mode=predict"),
    row(
        "--set=prediction.bandwidth_gbit=10",
        "--set=prediction.bandwidth_gbit=10",
        "--mode=predict",
    ),
    row("--mode=predict --strategies=tower --replicas=0", "--replicas=0", "1"),
    row("--mode=predict --strategies=tower --replicas=a", "--replicas=a", "numbers"),
    row(
        "--mode=predict --strategies=tower --set=prediction.bandwidth_gbit=0",
        "--set=prediction.bandwidth_gbit=0",
    ),
    # This is slower than every network that was measured.
    row(
        "--mode=predict --strategies=tower --set=prediction.bandwidth_gbit=0.09",
        "--set=prediction.bandwidth_gbit=0.09",
        "0.1",
    ),
    row("--mode=predict --strategies=tower --replicas=64,512", "=64,512", "beyond 8"),
    row(
        "--mode=predict --strategies=tower --replicas=8 --global_batch_size=3",
        "--replicas=8 is beyond 6",
    ),
    row(
        "--mode=predict --strategies=multi_worker_mirrored "
        "--emulated_bandwidth_mbit=250",
        *("--emulated_bandwidth_mbit=250", "--set=prediction.bandwidth_gbit=0.25"),
    ),
    row("--mode=predict --strategies=tower --runs=other", "--runs", "--strategies"),
    row("--mode=predict --strategies=model_parallel", "model_parallel", "gradients"),
    row(
        "--mode=predict --strategies=tower --global_batch_size=2",
        "--global_batch_size=2",
        "2 and 3 replicas",
    ),
    row(
        "--mode=predict --strategies=tower --run_dir=other",
        "--run_dir=other",
        "not empty",
        prepare=write("other/notes.txt", "mine"),
    ),
    row("--run_dir=", "--run_dir= ", "empty"),
    row("--verbose=perhaps", "--verbose=perhaps", "true or false"),
    row("--noverbose=1", "--noverbose=1", "true or false"),
    row("--flagfile=flags.txt", "--flagfile", prepare=write("flags.txt", "--seed=1")),
    row("--undefok=sed --sed=3", "--undefok"),
    row("--config=", "--config= "),
    row("--config=missing.json", "--config=missing.json", "No such file"),
    row("--config=.", "--config=.", "directory"),
    row("--config=a.json", "--config=a.json", "not JSON", prepare=write("a.json", "{")),
    row("--config=a.json", "--config=a.json", prepare=write("a.json", b"\xff\xfe")),
    row("--config=a.json", "--config=a.json", prepare=write("a.json", "[" * 100_000)),
    row("--config=a.json", "--config=a.json", "[1]", prepare=write("a.json", "[1]")),
    row(
        "--config=a.json",
        "--config=a.json",
        "'sed'",
        "'seed'",
        prepare=write("a.json", '{"run": {"sed": 3}}'),
    ),
    row(
        "--config=a.json --seed=3",
        "--config=a.json",
        "--seed=true",
        prepare=write("a.json", '{"run": {"seed": true}}'),
    ),
    row(
        "--config=a.json --epochs=3",
        "--train_steps=4",
        "--epochs=3",
        prepare=write("a.json", '{"length": {"train_steps": 4}}'),
    ),
    Row(("--model=two\nlines",), ("--model=two\\nlines",)),
    Row(("--model=\x1b[31mred",), ("--model=\\x1b[31mred",)),
    Row(("--run_dir=\udcff",), ("--run_dir=\\udcff", "UTF-8")),
    Row(("--config=a\nb",), ("--config=a\\nb",)),
    Row(("--seed=1", ""), ("''", "--name=value")),
    Row(("--str\nategy=x",), ("--str\\nategy",)),
]


def make_pipe(folder: pathlib.Path) -> None:
    """Makes a named pipe that nobody writes to."""
    os.mkfifo(folder / "pipe")


def write_sparse(name: str) -> Callable[[pathlib.Path], object]:
    """Returns a function that makes a file of 17 MiB that takes no room on disk."""

    def prepare(folder: pathlib.Path) -> None:
        with (folder / name).open("wb") as file:
            file.truncate(17 << 20)

    return prepare


_MANY_KEYS = ", ".join(f'"x{i}": 1' for i in range(100_000))

# Without the refusal, the program would ignore each of these without a word.
NOT_USED = [
    row("--num_ps=2 --strategy=multi_worker_mirrored", "--num_ps=2", "parameter_ser"),
    row("--num_workers=3 --strategy=mirrored", "--num_workers=3", "multi_worker_mirr"),
    row("--num_ps=1", "--num_ps=1", "--strategy=one_device"),
    row("--max_restarts=0 --strategy=tower", "--max_restarts=0", "--strategy=tower"),
    row(
        "--set=strategy.cross_device_reduction=nccl --strategy=tower",
        "=nccl",
        "=mirrored.",
    ),
    row("--all_reduce_dtype=float16 --strategy=mirrored", "=float16", "=multi_worker"),
    row(
        "--all_reduce_dtype=float16 --strategy=parameter_server",
        "--all_reduce_dtype=float16",
    ),
    *(
        row(f"{flags} --gradient_compression=int8", "=int8", "=multi_worker_mirrored")
        for flags in (
            *("--strategy=one_device", "--strategy=mirrored"),
            "--strategy=tower --update=async",
        )
    ),
    row(
        "--set=strategy.collective_implementation=ring",
        "--set=strategy.collective_implementation=ring",
    ),
    row(
        "--set=strategy.peer_timeout_seconds=3 --strategy=tower",
        "--set=strategy.peer_timeout_seconds=3",
    ),
    row(
        "--set=strategy.startup_timeout_seconds=3",
        "--set=strategy.startup_timeout_seconds=3",
        "=one_device",
    ),
    row(
        "--set=strategy.isolate_network=required",
        "--set=strategy.isolate_network=required",
        "=one_device",
    ),
    row("--emulated_bandwidth_mbit=100", "=100 ", "--strategy=one_device"),
    row("--emulated_bandwidth_mbit=9 --strategy=mirrored", "=9 ", "multi_worker_mi"),
    row("--allow_remote_hosts", "--allow_remote_hosts=true", "=one_device"),
    row("--hidden_units=3", "--hidden_units=3", "--model=convnet", "mlp"),
    row(
        "--set=model.embedding_shards=3 --model=mlp",
        "--set=model.embedding_shards=3",
        "wide_embedding",
    ),
    row("--dropout=0.5 --model=keras:ResNet50", "--dropout=0.5", "keras:ResNet50"),
    row(
        "--set=data.num_examples=99",
        "--set=data.num_examples=99",
        "--dataset=digits",
        "synthetic",
    ),
    row(
        "--set=data.input_shape=3 --dataset=clicks",
        "--set=data.input_shape=3",
        "--dataset=clicks",
    ),
    row(
        "--set=data.num_columns=3 --dataset=synthetic",
        "--set=data.num_columns=3",
        "clicks",
    ),
    row(
        "--set=data.eval_fraction=0.5 --dataset=clicks",
        "--set=data.eval_fraction=0.5",
        "digits",
    ),
    row("--record_schema=a:int64:1,b:int64", "--record_schema=a:int64", "tfrecord"),
    row(
        "--num_classes=3 --dataset=tfrecord --data_path=a",
        "--num_classes=3",
        "--dataset=tfrecord",
    ),
    row("--seeds=3", "--seeds=3", "--mode=train", "--mode=compare"),
    row("--tune=learning_rate:1e-4..1", "--tune=", "--mode=train", "--mode=compare"),
    row(
        "--set=comparison.target_accuracy=0.5",
        "--set=comparison.target_accuracy=0.5",
        "--mode=compare",
    ),
    row(
        "--set=comparison.accuracy_margin_points=3",
        "--set=comparison.accuracy_margin_points=3",
        "--mode=compare",
    ),
    row(
        "--set=comparison.allow_different=model",
        "--set=comparison.allow_different=model",
        "--mode=compare",
    ),
    row(
        "--set=tracking.tracker_group=a",
        "--set=tracking.tracker_group=a",
        "--trackers=none",
    ),
    row(
        "--set=tracking.tracker_experiment=a",
        "--set=tracking.tracker_experiment=a",
        "--trackers=none",
    ),
    row(
        "--mode=compare --strategies=tower,mirrored --num_ps=2",
        "--num_ps=2",
        "--strategy=tower, mirrored",
    ),
    row("--mode=verify --strategies=tower --num_workers=2", "--num_workers=2"),
    row("--mode=verify --strategies=tower --seeds=2", "--seeds=2", "--mode=verify"),
    Row(
        ("--mode=compare", "--num_ps=2", "--arm=a:", "--arm=b: --jit_compile=on"),
        ("--num_ps=2", "--strategy=one_device"),
    ),
    Row(
        ("--mode=compare", "--arm=a: --num_ps=2", "--arm=b:"),
        ("--arm=a: --num_ps=2", "--num_ps=2 is not used"),
    ),
    Row(
        ("--mode=compare", "--replicas=4", "--arm=a:", "--arm=b: --jit_compile=on"),
        ("--replicas=4", "--mode=predict"),
    ),
]

TOO_LARGE = [
    row(f"--{'x' * 1000}", "--xxxxx", "is unknown"),
    row(f"--{'x' * 100_000}=3", "--xxxxx", "is unknown"),
    row("-" * 50_000, "-----", "is unknown"),
    row("--num_workers=100000 --strategy=multi_worker_mirrored", "at most 1000"),
    row("--num_ps=100000 --strategy=parameter_server", "at most 1000"),
    row(f"--num_replicas={2**62} --global_batch_size={2**62}", "at most 1000000"),
    row(
        "--strategy=parameter_server --num_workers=1000 --num_ps=1000",
        "--num_workers=1000 --num_ps=1000 makes 2,001 processes",
        "MiB",
    ),
    row(
        "--dataset=synthetic --model=mlp "
        f"--set=data.input_shape={','.join('1' * 2000)}",
        "--set=data.input_shape=1,1,1",
        "lists 2000 values",
        "at most 32",
    ),
    row(f"--model=mlp --hidden_units={','.join('1' * 5000)}", "--hidden_units=1,1,"),
    row(
        f"--strategy=model_parallel --pipeline_stages={'9' * 4301}",
        "--pipeline_stages=9999",
        "out of",
    ),
    row(f"--devices={'gpu:1,' * 10_000}gpu:1", "--devices=gpu:1", "at most 1000"),
    row(
        "--mode=compare --strategies=tower,mirrored --seed=2147483647 --seeds=2",
        "--seed=2147483647",
        "--seeds=2",
        "2147483648",
    ),
    row(
        f"--run_dir={'x' * 100_000}",
        "--run_dir=xxxxx",
        "too long",
    ),
]

NO_PLAIN_FILE = [
    row("--config=pipe", "--config=pipe", "pipe or device", prepare=make_pipe),
    row("--config=/dev/zero", "--config=/dev/zero", "pipe or device"),
    row("--config=/dev/null", "--config=/dev/null", "pipe or device"),
    row("--config=big", "--config=big", "16 MiB", prepare=write_sparse("big")),
    row("--config=link", "--config=link", prepare=lambda f: make_loop(f)),
    row(f"--config={'x' * 5000}", "--config=xxxxx", "too long"),
    row(
        "--config=a.json",
        "--config=a.json",
        "'x7' is there twice",
        prepare=write("a.json", f'{{"run": {{{_MANY_KEYS}, "x7": 1}}}}'),
    ),
    row(
        "--config=a.json",
        "'seed' is there twice",
        prepare=write("a.json", '{"run": {"seed": 1, "seed": 1}}'),
    ),
    row(
        "--config=a.json",
        "--learning_rate=nan",
        prepare=write("a.json", '{"optimizer": {"learning_rate": NaN}}'),
    ),
]


# Only TensorFlow knows the shapes that a model takes and the number of examples.
DOES_NOT_FIT_TOGETHER = [
    row(
        "--global_batch_size=2000 --set=length.drop_last_batch=true",
        "--global_batch_size=2000",
        "--set=length.drop_last_batch=true",
    ),
    row(
        "--jit_compile=on --dataset=clicks --model=wide_embedding",
        "--jit_compile=on",
        "'embedding'",
    ),
    row("--model=keras:ResNet50", "--model=keras:ResNet50", "(8, 8, 1)", "at least 32"),
    row("--model=cifar10 --dataset=clicks", "--model=cifar10", "categories"),
    row("--dataset=clicks", "--model=convnet", "--model=wide_embedding"),
    row("--dataset=clicks --model=mlp", "--model=mlp", "--model=wide_embedding"),
    row("--model=wide_embedding", "--model=wide_embedding", "--dataset=clicks"),
    row(
        "--model=wide_embedding --dataset=clicks --set=model.embedding_shards=3 "
        "--set=data.num_columns=1 --set=data.num_categories=2 "
        "--set=data.num_examples=80",
        "--set=model.embedding_shards=3",
        "2 rows",
    ),
    row(
        "--model=wide_embedding --dataset=clicks "
        "--set=model.embedding_dimension=999999",
        "--set=model.embedding_dimension=999999",
        "--set=data.num_categories",
    ),
    row(
        "--strategy=parameter_averaging --model=mlp --hidden_units=8 "
        "--outer_optimizer=sgd --outer_fragments=5",
        "--outer_fragments=5",
        "4 variables",
    ),
]


def write_records(folder: pathlib.Path) -> pathlib.Path:
    """Writes a TFRecord file that --record_schema accepts by default."""
    # Most tests of this module's rows do not need TensorFlow, so it is imported here.
    import tensorflow as tf

    path = folder / "some.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in range(20):
            example = tf.train.Example()
            values = example.features.feature
            values["sample"].int64_list.value.extend([number] * 5)
            values["label"].int64_list.value.append(number % 2)
            writer.write(example.SerializeToString())
    return path


def write_damaged_records(folder: pathlib.Path) -> None:
    path = write_records(folder)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


RECORDS = "--model=mlp --dataset=tfrecord --data_path=some.tfrecord"

NEEDS_DEVICES_OR_DATA = [
    row("--strategy=mirrored --num_replicas=1000", "--num_replicas=1000", "--num_rep"),
    row(RECORDS, "some.tfrecord", "damaged", prepare=write_damaged_records),
]

NO_SUCH_DEVICES_OR_DATA = [
    row(
        "--strategy=tower --global_batch_size=1", "--global_batch_size=1", "2 replicas"
    ),
    row(
        "--dataset=tfrecord --data_path=some.tfrecord",
        "--model=convnet",
        "--model=mlp",
        prepare=write_records,
    ),
    row(RECORDS, "--data_path=some.tfrecord", "does not exist"),
    row("--devices=gpu:0", "--devices=gpu:0", "no GPU, only the CPU (cpu:1 to cpu:"),
    row("--strategy=tower --devices=gpu:0,gpu:3", "gpu:0, gpu:3", "--soft_placement"),
    row("--devices=gpu:5 --nosoft_placement", "names gpu:5", "no GPU"),
    row(
        "--strategy=mirrored --devices=cpu:999 --global_batch_size=999",
        "--devices=cpu:999",
        "or fewer",
    ),
    row("--memory_growth", "--memory_growth", "no GPU"),
    row(
        "--set=device.memory_limit_mib=100",
        "--set=device.memory_limit_mib=100",
        "no GPU",
    ),
    row("--memory_growth --strategy=multi_worker_mirrored", "--memory_growth", "GPUs"),
    row(
        "--set=device.memory_fraction=0.5 --strategy=mirrored",
        "--set=device.memory_fraction=0.5",
        "no GPU",
    ),
    row("--mode=devices --devices=gpu:0", "--devices=gpu:0", "no GPU"),
    row("--mode=devices --memory_growth", "--memory_growth", "no GPU"),
    row("--strategy=tower --num_replicas=1000 --global_batch_size=2000", "=1000"),
    row(
        "--strategy=mirrored --num_replicas=2 "
        "--set=strategy.cross_device_reduction=nccl",
        "--set=strategy.cross_device_reduction=nccl",
    ),
    row(
        "--strategy=mirrored --num_replicas=3 "
        "--set=strategy.cross_device_reduction=hierarchical",
        "--set=strategy.cross_device_reduction=hierarchical",
        "there are 3",
    ),
    row(RECORDS, "some.tfrecord", "empty", prepare=write("some.tfrecord", "")),
    row(
        RECORDS,
        "some.tfrecord",
        prepare=lambda folder: (folder / "some.tfrecord").mkdir(),
    ),
    row(
        f"{RECORDS} --record_schema=image:uint8",
        "--record_schema=",
        prepare=write_records,
    ),
    row(
        f"{RECORDS} --record_schema=picture:int64:5,label:int64",
        "--record_schema=",
        "'picture'",
        prepare=write_records,
    ),
    row(
        "--pipeline_stages=dense_7 --strategy=model_parallel --model=mlp",
        "--pipeline_stages=dense_7: 'dense_7' is not a layer",
        "hidden_1, hidden_2, logits",
    ),
    row(
        "--pipeline_stages=4 --strategy=model_parallel --model=mlp --hidden_units=8",
        "--pipeline_stages=4",
        "3 parts",
    ),
    row(
        "--pipeline_stages=1000 --strategy=model_parallel",
        "--pipeline_stages=1000",
        "logical devices",
    ),
    row("--set=data.eval_fraction=0.0001", "--set=data.eval_fraction=0.0001"),
    row("--epochs=4611686018427387904", "--epochs=4611686018427387904", "23 steps"),
    row(f"{RECORDS},nowhere", "'some.tfrecord' does not exist"),
    row(f"{RECORDS},some.tfrecord", "'some.tfrecord' twice", prepare=write_records),
    row(f"{RECORDS.replace('some', '*')}", "=*.tfrecord", "matches no file"),
    row(
        f"{RECORDS} --sharding=example --eval_data_path=nowhere",
        "--eval_data_path=nowhere",
        prepare=write_records,
    ),
    row(
        f"{RECORDS} --sharding=file --eval_data_path=some.tfrecord"
        " --global_batch_size=21",
        "--global_batch_size=21",
        "smaller batches are dropped (--sharding)",
        prepare=write_records,
    ),
    row("--dataset=cifar10 --data_path=nowhere", "--data_path=nowhere", "not exist"),
    row("--dataset=cifar10 --data_path=/dev/zero", "--data_path=/dev/zero", "not a f"),
]


def make_link(folder: pathlib.Path) -> None:
    (folder / "link").symlink_to("nowhere")


def make_loop(folder: pathlib.Path) -> None:
    (folder / "link").symlink_to("link")


NO_FOLDER = [
    row("--run_dir=file/run", "--run_dir=file/run", prepare=write("file", "x")),
    row("--run_dir=/dev/null/run", "--run_dir=/dev/null/run", "not a folder"),
    row("--run_dir=/proc/self/x/y", "--run_dir=/proc/self/x/y"),
    row("--run_dir=file", "--run_dir=file", "not a folder", prepare=write("file", "x")),
    row("--run_dir=file/..", "--run_dir=file/..", prepare=write("file", "x")),
    row("--run_dir=link", "--run_dir=link", prepare=make_link),
    row("--run_dir=link/run", "--run_dir=link/run", prepare=make_link),
    row("--run_dir=link", "--run_dir=link", prepare=make_loop),
    row(f"--run_dir={'x' * 300}", f"--run_dir={'x' * 300}"),
    row(f"--run_dir={'x/' * 3000}", "--run_dir=x/x/"),
    row("--run_dir=new/../f/x", "new is not a folder", prepare=write("f", "x")),
    row("--run_dir=new/../x", "--run_dir=new/../x", "new is not a folder"),
    row(
        "--mode=verify --strategies=tower --run_dir=new/../f/x",
        "new is not a folder",
        prepare=write("f", "x"),
    ),
    row(
        "--mode=compare --strategies=tower,mirrored --run_dir=new/../f/x",
        "new is not a folder",
        prepare=write("f", "x"),
    ),
    row(
        "--mode=predict --strategies=tower --run_dir=f/x",
        "f is not a folder",
        prepare=write("f", "x"),
    ),
    row(
        f"--mode=verify --strategies=tower --run_dir=a/{'x' * 300}",
        "--run_dir=a/xxx",
        "too long",
    ),
    row("--run_dir=pipe", "--run_dir=pipe", "not a folder", prepare=make_pipe),
    row("--run_dir=/dev/full/x", "--run_dir=/dev/full/x", "not a folder"),
    row("--run_dir=.", "--run_dir=.", "not a run", prepare=write("notes.txt", "mine")),
    row("--run_dir=mine", "--run_dir=mine", prepare=write("mine/result.json", "{}")),
    row("--run_dir=mine", "--run_dir=mine", prepare=write("mine/.hidden", "")),
    row(
        "--run_dir=mine --resume=auto",
        "--run_dir=mine",
        "config.json",
        prepare=write("mine/config.json", '{"architectures": ["BertModel"]}'),
    ),
    row(
        "--run_dir=mine --resume=auto",
        "--run_dir=mine",
        "config.json",
        prepare=write("mine/config.json", "[1, 2]"),
    ),
    row(
        "--run_dir=mine --resume=auto",
        "--run_dir=mine",
        "not a run",
        prepare=lambda folder: (folder / "mine/config.json").mkdir(parents=True),
    ),
    row("--mode=evaluate --run_dir=none", "--mode=evaluate", "--run_dir"),
    row("--mode=evaluate --run_dir=nowhere", "--run_dir=nowhere"),
    row("--mode=evaluate --run_dir=.", "--run_dir=."),
    row(
        "--mode=evaluate --run_dir=file/run",
        "--run_dir=file/run",
        prepare=write("file", "x"),
    ),
    row(f"--mode=evaluate --run_dir={'x' * 300}", f"--run_dir={'x' * 300}"),
]


def remove_checkpoints(run: pathlib.Path) -> None:
    shutil.rmtree(run / "checkpoints")


def damage_checkpoints(run: pathlib.Path) -> None:
    for path in (run / "checkpoints").glob("*/variables.index"):
        path.write_bytes(b"")


def change_config(**settings: object) -> Callable[[pathlib.Path], object]:
    def change(run: pathlib.Path) -> None:
        path = run / "config.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        for group, changed in by_group(settings).items():
            content[group] |= changed
        path.write_text(json.dumps(content), encoding="utf-8")

    return change


def add_unknown_setting(run: pathlib.Path) -> None:
    path = run / "config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["run"]["sed"] = 1
    path.write_text(json.dumps(content), encoding="utf-8")


TRAIN = " ".join(SMALL_RUN)

RESUME = f"{TRAIN} --resume=auto --run_dir=run"

EVALUATE = "--mode=evaluate --run_dir=run"

# These are about a finished run: `prepare` gets its folder.
RUN_EXISTS = [
    row(f"{TRAIN} --run_dir=run", "--run_dir=run", "--resume=auto"),
    row("--run_dir=run", "--run_dir=run", "--resume=auto"),
    row("--config=run/config.json", "--run_dir=", "run already holds", "--resume=auto"),
    row(f"{EVALUATE} --hidden_units=9", "--hidden_units=9", "--hidden_units=8"),
    row(f"{EVALUATE} --learning_rate=3", "--learning_rate=3 ", "0.001"),
    row(f"{EVALUATE} --seed=7", "--seed=7 has no effect", "--seed=0"),
    row(f"{EVALUATE} --export=keras", "--export=keras has no effect", "--export=none"),
    row(
        f"{EVALUATE} --set=report.record_steps=true",
        *("--set=report.record_steps=true has no effect", "record_steps=false"),
    ),
    row(
        f"{EVALUATE} --checkpoint_every_steps=7",
        *("--checkpoint_every_steps=7 has no effect", "leave it out"),
    ),
    # The default model is refused too, because the run has another one.
    row(f"{EVALUATE} --model=convnet", "--model=convnet", "--model=mlp"),
    row(
        f"{EVALUATE} --set=length.drop_last_batch=true",
        *("--set=length.drop_last_batch=true", "--set=length.drop_last_batch=false"),
    ),
    row(f"{RESUME} --seed=1", "--resume=auto", "--seed=1 (was 0)", "--run_dir"),
    row(
        "--model=mlp --hidden_units=8 --resume=auto --run_dir=run",
        *("a run of --train_steps=20", "no length is given"),
    ),
    row(f"{RESUME} --train_steps=5", "has done 20 steps", "--train_steps", "--run_dir"),
    row(
        "--train_steps=20 --resume=auto --run_dir=run",
        "--model=convnet (was mlp)",
        "--hidden_units=128,64 (was 8)",
    ),
    row(f"{RESUME} --hidden_units=9", "--hidden_units=9 (was 8)"),
    row(f"{RESUME} --learning_rate=0.5", "--learning_rate=0.5 (was 0.001)"),
    row(
        f"{RESUME} --set=length.drop_last_batch=true",
        "--set=length.drop_last_batch=true (was false)",
    ),
    row(f"{RESUME} --clip_global_norm=1", "--clip_global_norm=1 (was none)"),
    row(f"{RESUME} --global_batch_size=8", "--global_batch_size=8 (was 64)"),
    row(
        f"{RESUME} --dropout=0.5 --optimizer=sgd",
        "--dropout=0.5 (was 0)",
        "--optimizer=sgd (was adam)",
    ),
    row(
        f"{RESUME} --learning_rate_schedule=cosine --train_steps=40",
        "--train_steps=40 (was 20)",
        prepare=change_config(learning_rate_schedule="cosine"),
    ),
    row(
        RESUME,
        "--run_dir=run",
        "config.json",
        prepare=lambda run: (run / "config.json").write_text("{"),
    ),
    row(RESUME, "--run_dir=run", "--seed=", prepare=change_config(seed="x")),
    row(RESUME, "--run_dir=run", "'sed'", prepare=add_unknown_setting),
    row(RESUME, "checkpoint", "damaged", "--run_dir", prepare=damage_checkpoints),
    row(EVALUATE, "--run_dir=run", "no checkpoint", prepare=remove_checkpoints),
    row(
        EVALUATE,
        *("--script=train.py", "does not take", "--resume=auto"),
        prepare=lambda run: (run / "config.json").write_text(
            '{"model": {"script": "train.py"}, "given": ["script"]}'
        ),
    ),
    row(
        EVALUATE,
        "add --dataset=tfrecord '--data_path=my data/*' to read",
        prepare=change_config(dataset="tfrecord", data_path="my data/*"),
    ),
    row(
        EVALUATE,
        "--run_dir=run",
        "config.json",
        prepare=lambda run: (run / "config.json").write_text(""),
    ),
    row(
        EVALUATE, "--hidden_units", "config.json", prepare=change_config(hidden_units=8)
    ),
    row(
        EVALUATE, "checkpoint", "does not fit", prepare=change_config(hidden_units=[9])
    ),
    row(
        EVALUATE,
        "checkpoint",
        "does not fit",
        prepare=change_config(hidden_units=[8, 8]),
    ),
    row(EVALUATE, "checkpoint", "does not fit", prepare=change_config(optimizer="sgd")),
    row(f"{EVALUATE} --strategy=tower --num_replicas=1000", "--num_replicas=1000"),
]
