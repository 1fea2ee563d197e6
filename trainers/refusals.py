"""Errors of TensorFlow that are a user's to correct, in one line.

Whether XLA can compile a model, what becomes of the rows inside one, and what a stream
holds is known only once it runs.
"""

from __future__ import annotations

import re

from strategies.settings import UsageError
from trainers.config import Config

# TensorFlow 2.21: `Detected unsupported operations when trying to compile graph
# __inference_... on XLA_CPU_JIT: AsString (No registered ...`.
_UNSUPPORTED = re.compile(r"unsupported operations .*? on XLA\w*: (\w+)", re.DOTALL)
_COMPILER = re.compile(r"XlaMustCompile|tf2xla|known_issues")
# What is raised in Python while a stream is read comes with its traceback.
_STREAM = re.compile(r"\bUsageError: ([^\n]*)")
_ROWS = re.compile(r"--replayable_dropout does not fit layer [^;]*; [^.]*\.")


def refusal_of(error: Exception, config: Config) -> UsageError | None:
    """What to say in place of an error, or None if it is none of these."""
    # The coordinator of parameter servers wraps some errors.
    message = str(getattr(error, "original_exception", error))
    rows = _ROWS.search(message)
    stream = _STREAM.search(message)
    unsupported = _UNSUPPORTED.search(message)
    if config.model.replayable_dropout and rows:
        refusal = UsageError(rows.group())
    elif config.data.is_streamed and stream:
        refusal = UsageError(stream.group(1))
    elif config.model.jit_compile and (unsupported or _COMPILER.search(message)):
        reason = f": it has no {unsupported.group(1)}" if unsupported else ""
        refusal = UsageError(
            f"XLA cannot compile this model{reason}; leave --jit_compile out."
        )
    else:
        return None
    refusal.__cause__ = error
    return refusal
