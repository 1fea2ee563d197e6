"""TensorFlow errors that a user can correct, as one-line errors.

Some conditions are only known when the model runs: whether XLA can compile it, whether
its layers keep the rows of a batch, and the content of a stream.
"""

from __future__ import annotations

import importlib
import os
import re

from strategies.common.errors import UsageError
from strategies.common.write_errors import disk_error
from trainers.config.config import Config
from trainers.model.xla_errors import compile_error

# Messages without soft placement. From eager code: `Could not satisfy device
# specification '/job:localhost/replica:0/task:0/device:GPU:0'. enable_soft_placement=0.
# [...] All available devices [...].` From a function: `Unable to find any devices for
# spec /device:GPU:0`, or `Cannot assign a device for operation name: {{node name}} was
# explicitly assigned to /device:GPU:0 but available devices are [...]`.
_MISSING_DEVICE = re.compile(
    r"(?:Could not satisfy (?:explicit )?device specification '|any devices for spec "
    r"|was explicitly assigned to )(?P<device>[\w/:*]+)"
)
# On a CPU; on a GPU the loss is not a number.
_LABEL = re.compile(
    r"Received a label value of (-?\d+) which is outside the valid range of "
    r"\[0, (\d+)\)"
)
# Errors of Python code that reads a stream come with their traceback.
_STREAM = re.compile(r"\bUsageError: ([^\n]*)")
# From TensorFlow's reader, its parser, and the check of values after it.
_RECORD = re.compile(
    r"(?:corrupted|truncated) record at|inflate\(\) failed|ParseExample|"
    r"does not match --record_schema"
)


def refusal_of(error: Exception, config: Config) -> UsageError | None:
    """Returns one line for an error that the user can correct; None otherwise."""
    # The coordinator of parameter servers wraps some errors.
    message = str(getattr(error, "original_exception", error))
    missing = _MISSING_DEVICE.search(message)
    stream = _STREAM.search(message)
    label = _LABEL.search(message)
    refused_by_xla = (
        None if config.model.jit_compile == "off" else compile_error(message)
    )
    damaged_record = _damaged_record(message, config)
    words = disk_error(error)
    if words is not None:
        refusal = UsageError(
            f"a file cannot be written or read ({words}){_named(error)}: repair "
            "the disk or free space on it, then start again, a run with --resume=auto."
        )
    elif label:
        refusal = UsageError(
            f"the data has a label that is {label[1]}, and {config.model.name} has "
            f"{label[2]} outputs for classes, numbered from 0: give it an output for "
            "each class, or number the classes from 0."
        )
    elif _has_no_folder(error):
        refusal = UsageError(
            f"a folder was deleted or moved while it was in use, and what was in it is "
            f"lost{_named(error)}: start again, in a folder that stays."
        )
    elif stream:
        refusal = UsageError(stream.group(1))
    elif damaged_record is not None:
        refusal = damaged_record
    elif refused_by_xla is not None:
        refusal = refused_by_xla
    elif config.strategy.soft_placement is False and missing:
        refusal = UsageError(
            f"an operation is to run on {missing['device']}, which it cannot: this "
            f"process has {_existing_devices()}; change the model, or leave "
            "--nosoft_placement out."
        )
    else:
        return None
    refusal.__cause__ = error
    return refusal


def _damaged_record(message: str, config: Config) -> UsageError | None:
    if not (config.data.is_streamed and _RECORD.search(message)):
        return None
    # Imported late: this module is also used in processes without TensorFlow.
    from trainers.inputs.tfrecord.dataset import damage_of

    return damage_of(config.data)


def _has_no_folder(error: Exception) -> bool:
    """Returns whether a file could not be opened because its folder is gone."""
    name = getattr(error, "filename", None)
    return (
        isinstance(error, FileNotFoundError)
        and isinstance(name, str)
        and not os.path.isdir(os.path.dirname(os.path.abspath(name)))
    )


def _named(error: Exception) -> str:
    name = getattr(error, "filename", None)
    return f", {name}" if name else ""


def _existing_devices() -> str:
    """Returns the names of this process's devices, as `tf.device` accepts them."""
    # Imported late: this module is also used in processes without TensorFlow.
    tensorflow = importlib.import_module("tensorflow")
    found = tensorflow.config.list_logical_devices()
    return ", ".join(f"/device:{d.name.rpartition('/device:')[2]}" for d in found)
