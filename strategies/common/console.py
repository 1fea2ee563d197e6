"""Console output, progress and the log file of a run."""

import collections
import contextlib
import faulthandler
import pathlib
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import IO, Any

import rich.console
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from strategies.common.native_log import silence_streams_that_fail
from strategies.common.text import one_line

# TensorFlow's message about a lost parameter server has hundreds of lines.
_MOST_LINES_OF_A_CAUSE = 8
# Lines kept until a log is opened. A process without a run folder opens none.
_MOST_LINES_BEFORE_A_LOG = 100


# The standard output may be a file on a full disk, a terminal that has gone away, or a
# file that the program has closed.
_FAILURES = (OSError, ValueError)


class _Terminal(rich.console.Console):
    """Console that leaves out what cannot be written.

    It stays silent once its reader is gone, as after `| head -1`.
    """

    def on_broken_pipe(self) -> None:
        """Silences the console; rich itself would end the process and the run."""
        self.quiet = True
        silence_streams_that_fail()

    def __exit__(self, *error: Any) -> None:
        """Writes what has been printed in the block, if that is possible."""
        try:
            super().__exit__(*error)
        except _FAILURES:
            # Rich keeps the text, and would try it again with every later line.
            self.quiet = True
            with self:
                pass
            self.quiet = False


def print_error(line: str) -> None:
    """Prints a line to standard error, if that is possible."""
    with contextlib.suppress(*_FAILURES):
        print(line, file=sys.stderr, flush=True)


class Console:
    """Printer of lines and progress, with a log file for the lines.

    On a terminal progress is a bar. Elsewhere it is one line every few seconds, so
    that the output stays short even if steps are fast.
    """

    _SECONDS_BETWEEN_LINES = 5.0

    def __init__(self) -> None:
        self._rich = _Terminal(highlight=False, soft_wrap=True)
        self._log: IO[str] | None = None
        # A run folder, and a log in it, is there only after the first lines.
        self._before_log = collections.deque[str](maxlen=_MOST_LINES_BEFORE_A_LOG)
        self._progress: Progress | None = None
        self._last_line = time.monotonic()

    def open_log(self, path: pathlib.Path) -> None:
        """Writes all lines to a file as well, also the lines so far."""
        self._log = path.open("a", encoding="utf-8")
        with contextlib.suppress(OSError):
            self._log.writelines(self._before_log)
        self._before_log.clear()

    @property
    def log_name(self) -> str | None:
        """Path of the log; None without a log."""
        return None if self._log is None else self._log.name

    def dump_stacks(self) -> None:
        """Writes every thread's Python stack to the log, or else to standard error."""
        stream = self._log or sys.stderr
        try:
            stream.write("Where every thread is, its last call first:\n")
            # faulthandler writes to the file descriptor, past the stream's buffer.
            stream.flush()
        except OSError:
            # The log is on a full disk.
            stream = sys.stderr
        # It takes no lock and allocates nothing in Python, so that it works even if
        # another thread holds a lock for ever.
        faulthandler.dump_traceback(file=stream, all_threads=True)

    def say(self, line: str) -> None:
        """Prints one line to standard output and writes it to the log."""
        self._rich.print(line, markup=False)
        self._write_log(line)

    def item(self, label: str, text: object) -> None:
        """Prints one line of a report: a label in a column of 10 characters, and text.

        Args:
          label: Label; empty in lines that continue the one before.
          text: Text, or a value that is shown as text, without line breaks.
        """
        self.say(f"{label:<9} {text}")

    def note(self, text: str) -> None:
        """Writes text to the log only, because it is too long for a terminal."""
        self._write_log(text)

    def warn(self, line: str) -> None:
        """Prints a warning to standard error, or above a progress bar, and logs it."""
        if self._progress is not None:
            # Rich prints above the bar. Other output would land inside the bar.
            self._progress.console.print(f"warning: {line}", markup=False)
        else:
            print_error(f"warning: {line}")
        self._write_log(f"warning: {line}")

    def fail(
        self, line: str, cause: BaseException | None = None, verbose: bool = False
    ) -> None:
        """Prints one line that says why the run ends; the traceback's end is logged."""
        self.stop_progress()
        if cause is not None:
            lines = "".join(traceback.format_exception(cause)).splitlines()
            self._write_log("\n".join(lines[-_MOST_LINES_OF_A_CAUSE:]))
            if verbose:
                print_error("\n".join(lines))
        print_error(f"error: {line}")
        self._write_log(f"error: {line}")

    def report_bug(self, error: Exception, verbose: bool) -> None:
        """Prints an unexpected error in one line; the traceback goes to the log."""
        text = "".join(traceback.format_exception(error))
        self._write_log(text)
        # Without a log, standard error is the only place for the traceback.
        if verbose or self._log is None:
            print_error(text)
        where = "" if self._log is None else f"; the traceback is in {self._log.name}"
        words = one_line(error)[:300]
        print_error(f"error: {type(error).__name__}: {words}{where}")

    @contextlib.contextmanager
    def live(
        self, render: Callable[[], rich.console.RenderableType], remains: bool = False
    ) -> Iterator[None]:
        """Keeps a renderable up to date on a terminal; shows nothing elsewhere.

        Args:
          render: Function that returns the renderable.
          remains: True if the terminal keeps it at the end.
        """
        if not self._replaces_lines:
            yield
            return
        with Live(
            get_renderable=render,
            console=self._rich,
            refresh_per_second=2,
            transient=not remains,
        ):
            yield

    @property
    def _replaces_lines(self) -> bool:
        """True if standard output is a terminal that can replace a line."""
        return self._rich.is_terminal and not self._rich.is_dumb_terminal

    def narrate(self, line: str) -> None:
        """Prints one line unless a terminal shows the same content by `live`."""
        if not self._replaces_lines:
            self.say(line)

    def start_progress(self, step: int, last_step: int) -> None:
        """Shows the progress bar if standard output is a terminal."""
        if not self._replaces_lines:
            return
        # A narrow terminal would leave the step out, and show all of the rest.
        steps = Column(no_wrap=True, min_width=2 * len(str(last_step)) + 1)
        self._progress = Progress(
            TextColumn("train"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(table_column=steps),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(compact=True),
            console=self._rich,
        )
        self._progress.start()
        self._progress.add_task("train", total=last_step, completed=step, figures="")

    def advance(
        self,
        step: int,
        last_step: int,
        *,
        loss: float,
        examples_per_second: float,
        step_seconds: float,
    ) -> None:
        """Updates the progress bar, or prints a progress line if one is due."""
        figures = [f"loss {loss:.4f}", f"{examples_per_second:,.1f} examples/s"]
        if self._progress is not None:
            task = self._progress.task_ids[0]
            self._progress.update(task, completed=step, figures=" ".join(figures))
        elif self._line_is_due(step, last_step):
            figures.append(f"{1e3 * step_seconds:.1f} ms/step")
            self.say(f"train | step {step:>7}/{last_step} | {' | '.join(figures)}")

    def stop_progress(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def close(self) -> None:
        self.stop_progress()
        silence_streams_that_fail()
        if self._log is not None:
            with contextlib.suppress(OSError):
                self._log.close()
            self._log = None

    def _line_is_due(self, step: int, last_step: int) -> bool:
        now = time.monotonic()
        due = step == last_step or now - self._last_line >= self._SECONDS_BETWEEN_LINES
        if due:
            self._last_line = now
        return due

    def _write_log(self, line: str) -> None:
        dated = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n"
        if self._log is None:
            self._before_log.append(dated)
            return
        # The log only repeats the printed lines. The writers of more important files
        # report a full disk.
        with contextlib.suppress(OSError):
            self._log.write(dated)
            self._log.flush()
