"""The entry point: python -m trainers.main --strategy=mirrored."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence

from strategies.launcher import end_with_launcher
from strategies.settings import UsageError, printable
from trainers import flags
from trainers.config import Config
from trainers.console import Console
from trainers.launch import launch
from trainers.outcome import ExitCode
from trainers.quiet import native_log_hidden, prepare_standard_streams
from trainers.tasks import cluster_of, needs_tensorflow, run_task


def main(argv: Sequence[str]) -> int:
    """Runs one command line and returns its exit code."""
    try:
        config = flags.parse(argv)
    except flags.HelpRequested as help_requested:
        return _print_help(str(help_requested))
    except UsageError as error:
        return _refuse(error, flags.wants_tracebacks(argv))
    console = Console()
    try:
        return _run(config, argv, console)
    except UsageError as error:
        return _refuse(error, config.run.verbose)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except Exception as error:
        if _is_out_of_memory(error):
            return _refuse(_does_not_fit(error), config.run.verbose)
        console.report_bug(error, config.run.verbose)
        return ExitCode.BUG
    finally:
        console.close()


def _run(config: Config, argv: Sequence[str], console: Console) -> int:
    end_with_launcher()
    cluster = cluster_of(config, os.environ)
    if cluster is None:
        return launch(config, argv, console)
    if needs_tensorflow(config):
        with _interrupt_ends_at_once():
            _load_tensorflow(config.run.verbose)
    return run_task(config, cluster, console)


def _load_tensorflow(verbose: bool) -> None:
    """Imports it, and looks for GPUs, which also logs from C++."""
    if not verbose:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with contextlib.nullcontext() if verbose else native_log_hidden():
        import tensorflow as tf

        tf.config.list_physical_devices()


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


def _print_help(text: str) -> ExitCode:
    try:
        print(text, flush=True)
    except OSError as error:
        # Python would fail once more on what is left in the buffer when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # A reader such as `head` may have seen enough.
        if not isinstance(error, BrokenPipeError):
            words = f"--help cannot be printed ({error.strerror}): give it a terminal."
            return _refuse(UsageError(words), verbose=False)
    return ExitCode.DONE


def _is_out_of_memory(error: Exception) -> bool:
    tensorflow = sys.modules.get("tensorflow")
    return isinstance(error, MemoryError) or (
        tensorflow is not None
        and isinstance(error, tensorflow.errors.ResourceExhaustedError)
    )


def _does_not_fit(error: Exception) -> UsageError:
    words = " ".join(str(error).split())[:200]
    refusal = UsageError(
        f"this does not fit into memory ({words}): lower --global_batch_size, or make "
        "the model or the data set smaller."
    )
    refusal.__cause__ = error
    return refusal


def _refuse(error: UsageError, verbose: bool) -> ExitCode:
    if verbose:
        traceback.print_exception(error)
    print(f"error: {printable(str(error))}", file=sys.stderr)
    return ExitCode.USAGE


if __name__ == "__main__":
    prepare_standard_streams()
    sys.exit(main(sys.argv))
