"""Errors in what a user has written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from strategies.settings import UsageError, shown


@contextlib.contextmanager
def blamed(what: str) -> Iterator[None]:
    """Turns any error of the block into one line that says whose it is.

    Args:
      what: fails, such as a flag with the name of a function.

    Raises:
      UsageError: with the kind of error and its message; --verbose shows where it was.
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        words = shown(" ".join(str(error).split()))
        raise UsageError(
            f"{what} failed ({type(error).__name__}: {words}): mend it; --verbose "
            "shows where."
        ) from error
