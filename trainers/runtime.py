"""Loads TensorFlow: quietly, and with as many threads as were asked for."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

from strategies import discovery
from trainers.config import Config
from trainers.quiet import native_log_hidden


def load_tensorflow(config: Config) -> None:
    """Imports it, and looks for GPUs, which also logs from C++.

    About a task that is lost TensorFlow logs up to hundreds of lines a second, from
    C++ and Python, and then raises an error that says the same.
    """
    verbose = config.run.verbose
    several = discovery.traits(config.strategy.strategy).multi_process
    if not verbose:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3" if several else "2")
    hidden = contextlib.nullcontext() if verbose else native_log_hidden()
    with _interrupt_ends_at_once(), hidden:
        import tensorflow as tf

        tf.config.list_physical_devices()
        # Zero is TensorFlow's own choice, which is not to be set once it has started.
        if config.threads.intra_op_threads:
            tf.config.threading.set_intra_op_parallelism_threads(
                config.threads.intra_op_threads
            )
        if config.threads.inter_op_threads:
            tf.config.threading.set_inter_op_parallelism_threads(
                config.threads.inter_op_threads
            )
    if several and not verbose:
        tf.get_logger().setLevel("CRITICAL")
        _hide_errors_of_destructors(tf.errors.OpError)


def _hide_errors_of_destructors(kind: type[Exception]) -> None:
    """Keeps Python from printing tracebacks of what TensorFlow cannot give back.

    Its executors wait for a lost task when they are deleted, and raise what has been
    raised before (tensorflow/python/eager/executor.py, `__del__`).
    """
    usual = sys.unraisablehook

    def hook(raised: sys.UnraisableHookArgs) -> None:
        if not isinstance(raised.exc_value, kind):
            usual(raised)

    sys.unraisablehook = hook


@contextlib.contextmanager
def _interrupt_ends_at_once() -> Iterator[None]:
    """Keeps Ctrl-C from being raised as an exception within imports.

    Some of TensorFlow's imports catch every exception, or turn it into an
    ImportError. Nothing has been written yet that would need an end in order.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
