"""XLA errors that a user can correct.

This module does not import TensorFlow.
"""

import re

from strategies.common.errors import UsageError

# Message of TensorFlow 2.21: `Detected unsupported operations when trying to compile
# graph __inference_... on XLA_CPU_JIT: AsString (No registered ...`.
_UNSUPPORTED = re.compile(r"unsupported operations .*? on XLA\w*: (\w+)", re.DOTALL)
_COMPILER = re.compile(r"XlaMustCompile|tf2xla|known_issues")


def compile_error(message: str) -> UsageError | None:
    """Returns a one-line error for a failed compilation; None for any other error."""
    unsupported = _UNSUPPORTED.search(message)
    if unsupported is None and not _COMPILER.search(message):
        return None
    reason = f": it has no {unsupported.group(1)}" if unsupported else ""
    return UsageError(f"XLA cannot compile this model{reason}; use --jit_compile=off.")
