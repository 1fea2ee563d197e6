"""Keeps to a folder what a program does in it, whatever has been put there.

A run folder may come from somebody else. A link in it could make a run that goes on
there write to, or delete, what is anywhere on this machine, and a pipe could make it
wait for ever.
"""

from __future__ import annotations

import errno
import pathlib
import stat
from collections.abc import Iterator, Sequence


def check_own(folder: pathlib.Path, parts: Sequence[str]) -> None:
    """Checks that what is read, written and deleted in a folder is in it.

    That somebody puts a link there later, while a run is at work, is not seen.

    Args:
      folder: which may be a link itself, as the user has named it.
      parts: of it that are used, such as logs/*, with all on the way there; they need
        not exist.

    Raises:
      OSError: naming one that is neither a file nor a folder.
    """
    for part in parts:
        for path in _existing(folder, part.split("/")):
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                raise OSError(errno.ELOOP, "it is a link, which may lead out", path)
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise OSError(errno.EINVAL, "it is no file and no folder", path)


def _existing(folder: pathlib.Path, names: Sequence[str]) -> Iterator[pathlib.Path]:
    """What is there of a path, from the top; a link is not followed."""
    first, *rest = names
    for path in sorted(folder.iterdir()):
        if first in ("*", path.name):
            yield path
            if rest and path.is_dir() and not path.is_symlink():
                yield from _existing(path, rest)
