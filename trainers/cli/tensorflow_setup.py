"""Quiet import of TensorFlow, with the configured threads."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import pathlib
import signal
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from strategies.common.errors import UsageError
from strategies.common.files import is_url
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
    # Unlike `Path.expanduser`, it raises nothing for a user without a home.
    home = os.path.expanduser("~")
    folder = f"{home if os.access(home, os.W_OK) else '/tmp'}/.keras"
    folder = os.path.expanduser(environment.get("KERAS_HOME", folder))
    return pathlib.Path(folder, "keras.json")


def _backend_in(path: pathlib.Path) -> Any:
    """Returns None if there is no such file or setting, which Keras ignores, too."""
    try:
        settings = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return settings.get("backend") if isinstance(settings, dict) else None


def load_tensorflow(config: Config) -> None:
    """Imports TensorFlow, detects GPUs and sets the numbers of threads.

    When a task of the cluster dies, TensorFlow logs up to hundreds of lines a second,
    from C++ and Python, and then raises an error with the same information. Unless
    --verbose is given, these log lines are hidden.
    """
    verbose = config.run.verbose
    several = config.strategy.traits.multi_process
    for name, value in variables_of_import(config).items():
        os.environ.setdefault(name, value)
    hidden = contextlib.nullcontext() if verbose else native_log_hidden()
    with _interrupt_ends_at_once(), hidden:
        with imported_fast(), _settings_blamed():
            import tensorflow as tf

        # The detection of GPUs also logs from C++, so it runs while the log is hidden.
        tf.config.list_physical_devices()
        # 0 is TensorFlow's own choice; the number cannot be set once the runtime has
        # started.
        if config.threads.intra_op_threads:
            tf.config.threading.set_intra_op_parallelism_threads(
                config.threads.intra_op_threads
            )
        if config.threads.inter_op_threads:
            tf.config.threading.set_inter_op_parallelism_threads(
                config.threads.inter_op_threads
            )
    # Needs Keras. If Keras is missing, the error must come without TensorFlow's log.
    with _settings_blamed():
        adapt_tensorflow()
    if several and not verbose:
        tf.get_logger().setLevel("CRITICAL")
        _hide_errors_of_destructors(tf.errors.OpError)


def adapt_tensorflow() -> None:
    """Changes what TensorFlow and Keras do in the steps of a model, for good."""
    from strategies.common.private_apis.graphs import (
        inline_functions_in_stateless_scopes,
        keep_sums_in_order,
        name_operations_after_layers,
        read_the_clock_despite_determinism,
        show_one_replica_in_stateless_scopes,
    )
    from strategies.common.private_apis.variables import (
        refuse_plain_variables_in_steps,
    )
    from trainers.user_code import plain_variable_error, shared_variable_error

    keep_sums_in_order()
    read_the_clock_despite_determinism()
    name_operations_after_layers()
    inline_functions_in_stateless_scopes()
    show_one_replica_in_stateless_scopes()
    refuse_plain_variables_in_steps(plain_variable_error, shared_variable_error)


def variables_of_import(config: Config) -> dict[str, str]:
    """Returns environment variables that TensorFlow reads when it is imported.

    A variable that the user has set counts more.
    """
    variables = {}
    if not config.run.verbose:
        # 2 hides warnings, 3 hides errors as well.
        several = config.strategy.traits.multi_process
        variables["TF_CPP_MIN_LOG_LEVEL"] = "3" if several else "2"
    if is_url(config.tracking.tensorboard_dir or ""):
        # Google's default of 10 retries blocks training for minutes if the bucket does
        # not answer.
        variables["GCS_RETRY_CONFIG_MAX_RETRIES"] = "2"
    return variables


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
    """Suppresses tracebacks of one kind of exception that destructors raise.

    TensorFlow's executors wait for a dead task when they are deleted, and raise an
    error that was already raised before (tensorflow/python/eager/executor.py,
    `__del__`).
    """
    usual = sys.unraisablehook

    def hook(raised: sys.UnraisableHookArgs) -> None:
        if not isinstance(raised.exc_value, kind):
            usual(raised)

    sys.unraisablehook = hook


# Keras imports both packages if they are installed, for its scikit-learn wrappers and
# for image galleries of data sets. The imports take 0.9 of 3.2 s of processor time and
# 90 MiB in every task. Keras declares both as optional (keras/src/wrappers/fixes.py,
# keras/src/visualization/plot_image_gallery.py).
_NOT_FOR_KERAS = ("sklearn", "matplotlib")
_PARTS_THAT_NEED_THEM = ("wrappers", "visualization")
_PACKAGES_OF_PARTS = ("keras", "keras.src", "keras._tf_keras.keras")


@contextlib.contextmanager
def imported_fast() -> Iterator[None]:
    """Halves the import time of TensorFlow and Keras within the context."""
    absent = [name for name in _NOT_FOR_KERAS if name not in sys.modules]
    # None in sys.modules makes an import raise ImportError.
    sys.modules.update(dict.fromkeys(absent, None))  # type: ignore[arg-type]
    # An import produces hardly any garbage, and repeated collections take a quarter of
    # the time.
    gc.disable()
    try:
        yield
        # Later collections skip the imported objects.
        gc.freeze()
    finally:
        gc.enable()
        for name in absent:
            del sys.modules[name]
        _import_parts_when_used()


def _import_parts_when_used() -> None:
    """Lets a program have the parts of Keras that were imported without a package."""
    parts = [
        f"{x}.{part}" for x in _PACKAGES_OF_PARTS for part in _PARTS_THAT_NEED_THEM
    ]
    for name in list(sys.modules):
        if any(name == part or name.startswith(f"{part}.") for part in parts):
            del sys.modules[name]
    for name in _PACKAGES_OF_PARTS:
        package = sys.modules.get(name)
        if package is not None:
            for part in _PARTS_THAT_NEED_THEM:
                vars(package).pop(part, None)
            vars(package)["__getattr__"] = functools.partial(_imported_part, name)


def _imported_part(package: str, name: str) -> types.ModuleType:
    """Returns a part of Keras; the `__getattr__` of its package (PEP 562)."""
    if name not in _PARTS_THAT_NEED_THEM:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return importlib.import_module(f"{package}.{name}")


@contextlib.contextmanager
def _interrupt_ends_at_once() -> Iterator[None]:
    """Lets Ctrl-C end the process without a KeyboardInterrupt within the context.

    Some of TensorFlow's imports catch every exception or turn it into an ImportError.
    No file has been written yet that would need a clean shutdown.
    """
    # Another handler, or a parent that ignores SIGINT, keeps its decision.
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
