"""Loads TensorFlow: quietly, and with as many threads as were asked for."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pathlib
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from strategies import registry
from strategies.common.errors import UsageError
from strategies.common.native_log import native_log_hidden
from strategies.common.text import one_line, shown
from trainers.config.config import Config


def check_backend(environment: Mapping[str, str]) -> None:
    """Refuses another backend of Keras than TensorFlow, before Keras is loaded.

    Keras takes KERAS_BACKEND, or else what its keras.json says (keras/src/backend/
    config.py).

    Raises:
      UsageError: The backend is another one.
    """
    backend, source = environment.get("KERAS_BACKEND"), "KERAS_BACKEND"
    if not backend:
        path = _keras_settings(environment)
        backend, source = _backend_in(path), f'"backend" in {path}'
    if backend not in (None, "tensorflow"):
        raise UsageError(
            f"{source} is {shown(backend)}, and this project distributes with "
            "TensorFlow: set KERAS_BACKEND=tensorflow for this command."
        )


def _keras_settings(environment: Mapping[str, str]) -> pathlib.Path:
    home = environment.get("KERAS_HOME")
    if home is not None:
        return pathlib.Path(home, "keras.json").expanduser()
    base = pathlib.Path("~").expanduser()
    return (base if os.access(base, os.W_OK) else pathlib.Path("/tmp")) / (
        ".keras/keras.json"
    )


def _backend_in(path: pathlib.Path) -> Any:
    """Returns None if there is no such file or setting, which Keras ignores, too."""
    try:
        settings = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return settings.get("backend") if isinstance(settings, dict) else None


def load_tensorflow(config: Config) -> None:
    """Imports it, and looks for GPUs, which also logs from C++.

    About a task that is lost TensorFlow logs up to hundreds of lines a second, from
    C++ and Python, and then raises an error that says the same.
    """
    verbose = config.run.verbose
    several = registry.traits(config.strategy.strategy).multi_process
    if not verbose:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3" if several else "2")
    hidden = contextlib.nullcontext() if verbose else native_log_hidden()
    with _interrupt_ends_at_once(), hidden:
        with _imported_fast(), _settings_blamed():
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
    with _settings_blamed():
        from strategies.common.private_apis import (
            keep_sums_in_order,
            name_operations_after_layers,
        )

    keep_sums_in_order()
    name_operations_after_layers()
    if several and not verbose:
        tf.get_logger().setLevel("CRITICAL")
        _hide_errors_of_destructors(tf.errors.OpError)


@contextlib.contextmanager
def _settings_blamed() -> Iterator[None]:
    """Names the file that is wrong if Keras, or its predecessor, refuses its settings.

    Both check them when they are imported (keras/src/backend/config.py;
    tensorflow/python/keras/backend.py).
    """
    path = _keras_settings(os.environ)
    try:
        yield
    except (AssertionError, ValueError) as error:
        if not path.exists():
            raise
        reason = f" ({one_line(error)})" if str(error) else ""
        raise UsageError(
            f"TensorFlow and Keras do not accept {path}{reason}: correct the file, or "
            "remove it."
        ) from error


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
