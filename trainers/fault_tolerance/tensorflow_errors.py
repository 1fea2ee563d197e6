"""TensorFlow errors that a user can correct, as one-line errors.

Some conditions are only known when the model runs: whether XLA can compile it, whether
its layers keep the rows of a batch, and the content of a stream.
"""

import errno
import os
import re

from strategies.common.errors import UsageError, is_out_of_memory, missing_device
from strategies.common.text import one_line
from strategies.common.write_errors import disk_error, remedy_of
from trainers.config.config import Config
from trainers.model.xla_errors import compile_error

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

# Of Python's `tempfile`, as on a system that is read-only.
_NO_TEMPORARY_FOLDER = "No usable temporary directory found"


def refusal_of(error: Exception, config: Config) -> UsageError | None:
    """Returns one line for an error that the user can correct; None otherwise."""
    refusal = _refusal(error, config)
    if refusal is not None:
        refusal.__cause__ = error
    return refusal


def _refusal(error: Exception, config: Config) -> UsageError | None:
    # The coordinator of parameter servers wraps some errors.
    message = str(getattr(error, "original_exception", error))
    if (words := disk_error(error)) is not None:
        return UsageError(
            f"a file cannot be written or read ({words}){_named(error)}: "
            f"{remedy_of(words)} on its disk, then start again, a run with "
            "--resume=auto."
        )
    if (refused_by_limit := _limit(error)) is not None:
        return refused_by_limit
    if label := _LABEL.search(message):
        return UsageError(
            f"the data has a label that is {label[1]}, and {config.model.name} has "
            f"{label[2]} outputs for classes, numbered from 0: give it an output for "
            "each class, or number the classes from 0."
        )
    if _has_no_folder(error):
        return UsageError(
            "a folder was deleted or moved while it was in use, and what was in it is "
            f"lost{_named(error)}: start again, in a folder that stays."
        )
    if _NO_TEMPORARY_FOLDER in message:
        return UsageError(
            "temporary files can be written nowhere, neither in /tmp nor in this "
            "folder: set TMPDIR to a folder that can be written."
        )
    if stream := _STREAM.search(message):
        return UsageError(stream[1])
    if (damaged_record := _damaged_record(message, config)) is not None:
        return damaged_record
    is_compiled = config.model.jit_compile != "off"
    if is_compiled and (refused_by_xla := compile_error(message)) is not None:
        return refused_by_xla
    missing = missing_device(error)
    if config.strategy.soft_placement is False and missing:
        return UsageError(
            f"an operation is to run on {missing}, which it cannot: this "
            f"process has {_existing_devices()}; change the model, or leave "
            "--nosoft_placement out."
        )
    if is_out_of_memory(error):
        # Python's own MemoryError says nothing.
        cause = one_line(error)[:200]
        return UsageError(
            f"this does not fit into memory{f' ({cause})' if cause else ''}: lower "
            "--global_batch_size, or make the model or the data set smaller."
        )
    return None


def _damaged_record(message: str, config: Config) -> UsageError | None:
    if not (config.data.is_streamed and _RECORD.search(message)):
        return None
    # Imported late: this module is also used in processes without TensorFlow.
    from trainers.inputs.tfrecord.dataset import damage_of

    return damage_of(config.data)


def _limit(error: Exception) -> UsageError | None:
    """Returns one line for a limit on processes, threads, files or addresses."""
    # Of TensorFlow it is the class that a lack of memory has, with the system's words.
    for words in map(os.strerror, (errno.EMFILE, errno.ENFILE)):
        if words == getattr(error, "strerror", None) or f"; {words}" in str(error):
            return UsageError(
                f"no further file or connection can be opened ({words}): raise the "
                "limit (ulimit -n)."
            )
    # glibc adds other words where a mount forbids to execute.
    if str(error).endswith("failed to map segment from shared object"):
        return UsageError(
            f"there is no memory for a library ({one_line(error)}): raise the limit "
            "(ulimit -v), or free memory."
        )
    # Of a lock on a file the number is the same, and the words are others.
    is_process = str(getattr(error, "strerror", None)) == os.strerror(errno.EAGAIN)
    # Python has no class for it.
    if is_process or str(error) == "can't start new thread":
        return UsageError(
            f"no further process or thread can be started ({one_line(error)}): raise "
            "the limit (ulimit -u, or that of the container), or start fewer tasks."
        )
    return None


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
    import tensorflow as tf

    found = tf.config.list_logical_devices()
    return ", ".join(f"/device:{d.name.rpartition('/device:')[2]}" for d in found)
