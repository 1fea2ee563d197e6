"""Command lines of small tools, which have a few flags of their own."""

import contextlib
import sys
from collections.abc import Callable, Sequence

from absl import flags

from strategies.common.errors import ExitCode, UsageError
from strategies.common.native_log import silence_streams_that_fail
from strategies.common.text import shown
from trainers.cli.arguments import read_arguments


def tool_flags() -> flags.FlagValues:
    """Returns flags apart from absl's global ones; the first is `--help`."""
    values = flags.FlagValues()
    flags.DEFINE_bool("help", False, "Show this text.", flag_values=values)
    return values


def run_tool(
    run: Callable[[flags.FlagValues], int],
    values: flags.FlagValues,
    argv: Sequence[str],
    description: str | None,
) -> int:
    """Parses the command line of a tool, runs it and returns its exit code.

    Args:
      run: Function that does the work and returns the exit code.
      values: Flags of the tool.
      argv: Program name and its arguments.
      description: Text of `--help` before the flags.
    """
    try:
        positional = read_arguments(values, argv)
        # First, so that --help works beside any other arguments.
        if values.help:
            print(description, values.get_help(include_special_flags=False), sep="\n")
            exit_code: int = ExitCode.DONE
        elif positional:
            raise UsageError(
                f"{shown(positional[0])!r} is not a flag: give every setting as "
                "--name=value."
            )
        else:
            exit_code = run(values)
        # Here, and not as Python ends, which would print a traceback.
        sys.stdout.flush()
        return exit_code
    except BrokenPipeError:
        # A reader such as `head` closes the pipe early; this is no error.
        return ExitCode.DONE
    except flags.Error as error:
        words = " ".join(str(error).split())
        _complain(f"error: {words}; --help lists all flags.")
        return ExitCode.USAGE
    except UsageError as error:
        _complain(f"error: {error}")
        return ExitCode.USAGE
    except KeyboardInterrupt:
        _complain("interrupted")
        return ExitCode.INTERRUPTED
    finally:
        silence_streams_that_fail()


def _complain(words: str) -> None:
    """Prints an error; the exit code says it as well if nobody reads the stream."""
    with contextlib.suppress(OSError):
        print(words, file=sys.stderr, flush=True)
