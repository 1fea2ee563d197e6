"""Summary of a run for other tools (result.json)."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import platform
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import psutil
import tensorflow as tf

from strategies.cluster.spec import Cluster
from strategies.common.private_apis.models import flat_layers
from strategies.devices.assignment import cpu_model
from strategies.inner_loop.reduction import bytes_of
from strategies.processes.template_environment import file_kib_of_template_alone
from trainers.inputs.sources import Data, first_examples
from trainers.loop.parts import TrainingParts
from trainers.reporting.metrics import RunMetrics
from trainers.reporting.run_description import variable_bytes
from trainers.reporting.tracking.base import code_version
from trainers.run_dir.checkpoints import weights_sha256

# Enough to notice that a program draws its data anew.
_DIGESTED_EXAMPLES = 16

# In every result, None where they were not measured.
ALWAYS_FINAL = ("train_loss", "eval_loss", "eval_accuracy")


def _dtype_policy(model: keras.Model) -> str:
    """Returns the coarsest policy that a layer has, or else Keras's default."""
    computed = {layer.compute_dtype for layer in flat_layers(model)}
    for dtype in ("bfloat16", "float16"):
        if dtype in computed:
            return f"mixed_{dtype}"
    return keras.config.dtype_policy().name


class Origin(NamedTuple):
    """State in which a run began.

    Attributes:
      weights_sha256: Digest of the initial weights.
      examples_sha256: Digest of a program's first examples; None without a program.
      commit: Version of the code; None if unknown.
    """

    weights_sha256: str
    examples_sha256: str | None
    commit: str | None

    @classmethod
    def of(cls, parts: TrainingParts) -> Origin:
        """Returns the state of a run that has not begun."""
        is_program = parts.config.model.script is not None
        return cls(
            weights_sha256=weights_sha256(parts.model),
            examples_sha256=examples_sha256(parts.data) if is_program else None,
            commit=code_version(),
        )


def examples_sha256(data: Data) -> str:
    """Returns a digest of the first examples to look at."""
    digest = hashlib.sha256()
    few = first_examples(data.sample_source, _DIGESTED_EXAMPLES)
    for rows in tf.nest.flatten(few):
        digest.update(tf.io.serialize_tensor(rows).numpy())
    return digest.hexdigest()


def build_result(
    parts: TrainingParts,
    cluster: Cluster,
    metrics: RunMetrics,
    *,
    status: str,
    final: Mapping[str, float],
    rollbacks: int,
    origin: Origin,
) -> dict[str, Any]:
    """Returns the content of result.json without its schema_version."""
    strategy, config = parts.strategy, parts.config
    communication = strategy.communication(parts.bytes_to_share())
    commit = {} if origin.commit is None else {"commit": origin.commit}
    traits = dataclasses.asdict(config.traits)
    del traits["summary"]
    return {
        "status": status,
        "strategy": strategy.name,
        "traits": traits,
        "dtype_policy": _dtype_policy(parts.model),
        "compilation": {
            "scope": parts.compilation.scope.value,
            "reason": parts.compilation.reason,
        },
        "num_replicas": strategy.num_replicas,
        "cluster": dict(cluster.addresses) or None,
        "emulated_bandwidth_mbit": config.strategy.emulated_bandwidth_mbit,
        # The launcher, which observes dead tasks, adds its number of restarts later.
        "restarts": 0,
        "continued": metrics.process.is_continued,
        "steps": parts.applied_steps(),
        "attempted_steps": metrics.process.counters.attempted_steps,
        "examples_seen": metrics.process.counters.examples_seen,
        "eval_examples": parts.data.evaluation.num_examples,
        "final": {
            **dict.fromkeys(ALWAYS_FINAL),
            **final,
            "best_eval_loss": parts.data.best_eval_loss,
        },
        "throughput": metrics.process.throughput.summary(),
        "seconds": metrics.clock.seconds(),
        "peak_memory_mib": {cluster.task: peak_memory_mib()},
        "variable_bytes": variable_bytes(parts),
        # Bytes of one copy, or of this task's part.
        "optimizer_state_bytes": bytes_of(parts.optimizer_variables()),
        "communication": communication and dataclasses.asdict(communication),
        "staleness": metrics.process.staleness.summary(),
        "dropped_gradients": metrics.process.counters.dropped_gradients,
        "rollbacks": rollbacks,
        "pipeline": metrics.run_idle.summary(),
        "weights_sha256": weights_sha256(parts.model),
        "initial_weights_sha256": origin.weights_sha256,
        "first_examples_sha256": origin.examples_sha256,
        "versions": versions() | commit,
        "hardware": hardware(),
    }


def peak_memory_mib() -> float:
    """Returns the peak resident memory of this process, in MiB.

    A process that was forked from a template counts as if it had imported all itself.
    """
    # The peak of `getrusage` starts at the memory of the parent process, which can be a
    # notebook of gigabytes (fs/exec.c, `exec_mmap`). VmHWM does not.
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    (kibibytes,) = re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    in_template = file_kib_of_template_alone(os.environ)
    return round((int(kibibytes) + in_template) / 2**10, 1)


def versions() -> dict[str, str]:
    """Returns the versions of all packages that can change a result."""
    return {
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
    }


def hardware() -> dict[str, Any]:
    """Returns the hardware of this machine."""
    return {
        "cpu": cpu_model(),
        "cpu_cores": os.cpu_count(),
        "memory_mib": psutil.virtual_memory().total >> 20,
        "gpus": [
            tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)
            for gpu in tf.config.list_physical_devices("GPU")
        ],
    }
