"""Loads TensorFlow: quietly, and with as many threads as were asked for."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator

from strategies import discovery
from strategies.quiet import native_log_hidden
from trainers.config import Config


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
        with _imported_fast():
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
    # Needs Keras, whose absence is to be told without TensorFlow's log.
    from strategies.library_internals import (
        keep_sums_in_order,
        name_operations_after_layers,
    )

    keep_sums_in_order()
    name_operations_after_layers()
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


# Keras imports both if they are there, for classes that wrap a model for scikit-learn
# and for pictures of data sets: 0.9 of 3.2 s of processor time and 90 MiB of every
# task. It says of both that they are optional (keras/src/wrappers/fixes.py,
# keras/src/visualization/plot_image_gallery.py).
_NOT_FOR_KERAS = ("sklearn", "matplotlib")


@contextlib.contextmanager
def _imported_fast() -> Iterator[None]:
    """Halves the time that TensorFlow and Keras take to be imported.

    Nearly nothing that an import makes is ever garbage, and to look for it again and
    again takes a quarter of the time; afterwards it is not looked at any more.
    """
    absent = [name for name in _NOT_FOR_KERAS if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent, None))  # type: ignore[arg-type]
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
        for name in absent:
            del sys.modules[name]


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
