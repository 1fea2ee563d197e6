"""Durable writes, and protection from a hostile run folder.

A run folder may come from somebody else. A link in it could make a resumed run write or
delete files anywhere on this machine, and a pipe could make the run wait for ever.
"""

import errno
import fcntl
import json
import math
import os
import pathlib
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from strategies.common.errors import UsageError
from strategies.common.forks import call_at_forks

# A run's config.json has 6 kB, its result.json of a cluster of 1,000 tasks 100 kB.
MOST_BYTES = 16 << 20


def read_small(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> str:
    """Reads a small text file from an unknown source.

    Refuses pipes, for which a reader waits, and devices such as /dev/zero, which never
    end.

    Raises:
      OSError: it cannot be read, is no file, or has more bytes than accepted.
      ValueError: it is not UTF-8.
    """
    # Opened without waiting and checked afterwards, so that the checked file is read.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is a pipe or device, not a file", path)
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes >> 20} MiB", path)
    return content.decode("utf-8")


def write_atomically(path: pathlib.Path, text: str) -> None:
    """Replaces a file so that readers see the old or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.writing")
    # The file of an earlier process that died as it wrote.
    temporary.unlink(missing_ok=True)
    try:
        # Mode x fails where a link has been put, instead of writing through the link.
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            # Without this a power failure can keep the new name and lose the content.
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_to_disk(path.parent)


def append_whole(path: pathlib.Path, text: str) -> None:
    """Appends a whole text to a file or, on a full disk, raises OSError."""
    with path.open("ab", buffering=0) as file:
        before = file.seek(0, os.SEEK_END)
        content = text.encode("utf-8")
        try:
            # On a nearly full disk a write stores a part and succeeds; only the next
            # write fails.
            while content:
                content = content[file.write(content) :]
        except OSError:
            file.truncate(before)
            raise


def write_json(path: pathlib.Path, content: Mapping[str, Any]) -> None:
    """Replaces a file by indented JSON, as `write_atomically` does."""
    write_atomically(path, json.dumps(without_nan(content), indent=2) + "\n")


def without_nan(value: Any) -> Any:
    """Returns a value with None for every number that is not finite.

    JSON has no representation of such numbers and writes None as null.
    """
    if isinstance(value, Mapping):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def sync_to_disk(path: pathlib.Path) -> None:
    """Flushes a file or a folder to disk, so that it survives a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def new_folder(kind: str) -> pathlib.Path:
    """Returns a new path below runs/ with the kind of run in its name."""
    # Two runs may start in the same second; the process ID keeps their names apart.
    when = time.strftime("%Y%m%d-%H%M%S")
    return pathlib.Path(f"runs/{kind}-{when}-{os.getpid()}")


def check_writable(path: pathlib.Path, name: str) -> None:
    """Checks that something can be made at a path, without making anything.

    Args:
      path: File or folder, which need not exist.
      name: Name in messages, such as --run_dir=runs/one.

    Raises:
      UsageError: A file is in the way, or a folder that is not writable, or the path
        goes up (..) from a folder that is not there and would be left behind.
      OSError: The system cannot look there.
    """
    parts = path.parts
    above = (pathlib.Path(*parts[:i]) for i, part in enumerate(parts) if part == "..")
    missing = next((folder for folder in above if not folder.is_dir()), None)
    longest_name = max((len(os.fsencode(part)) for part in path.parts), default=0)
    existing = path.absolute()
    while not is_there(existing):
        existing = existing.parent
    if missing is not None:
        reason = f"{missing}/.. leads nowhere, because {missing} is not a folder"
    elif not existing.is_dir():
        reason = f"{existing} is not a folder"
    elif not os.access(existing, os.W_OK | os.X_OK):
        reason = f"{existing} is not writable"
    elif longest_name > os.pathconf(existing, "PC_NAME_MAX"):
        reason = f"{os.strerror(errno.ENAMETOOLONG)} of a folder"
    else:
        return
    raise UsageError(f"{name} cannot be used: {reason}; choose another.")


def is_url(path: str) -> bool:
    """Returns whether a path names a file system that is not this machine's."""
    return "://" in path


def is_there(path: pathlib.Path) -> bool:
    """Returns whether there is anything of that name, even a link to nowhere."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def unusable(folder: pathlib.Path, error: OSError) -> UsageError:
    """Returns the error for a --run_dir that cannot be read or written."""
    where = f"{error.filename}: " if error.filename else ""
    return UsageError(
        f"--run_dir={folder} cannot be used ({where}{error.strerror}): correct that "
        "or choose another folder."
    )


def remove_path(path: pathlib.Path) -> None:
    """Removes a folder, a file or a link, but never the target of a link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class FolderLock:
    """Lock that keeps other processes from using a folder while this process lives.

    The system releases the lock no matter how the process ends. No file remains.
    Processes that it forks, such as readers of a program's data, may live longer and do
    not hold the lock.
    """

    def __init__(self, path: pathlib.Path):
        self._path = path
        self._descriptor: int | None = None
        call_at_forks(after_in_child=self.release)

    def acquire(self) -> None:
        """Takes the lock, or raises UsageError if another process holds it."""
        descriptor = os.open(self._path, os.O_RDONLY)
        # Held without a break, unless the folder is another one since the last call.
        if self._descriptor is not None:
            if os.path.sameopenfile(self._descriptor, descriptor):
                os.close(descriptor)
                return
            self.release()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise UsageError(
                f"--run_dir={self._path} is being written to by another process: wait "
                "for it, end it, or choose another folder."
            ) from error
        except OSError:
            # Some network file systems have no locks. Usually only one process uses a
            # folder, and that process needs no lock.
            os.close(descriptor)
            return
        self._descriptor = descriptor

    def release(self) -> None:
        """Releases the lock, if this process holds it."""
        if self._descriptor is not None:
            # A lock of flock ends with the last descriptor of the open file.
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self.release()


def check_own(folder: pathlib.Path, parts: Sequence[str]) -> None:
    """Checks that the parts of a folder are regular files and folders inside it.

    The check does not detect a link that somebody adds later, during the run.

    Args:
      folder: Path from the user. It may be a link itself, because the user chose it.
      parts: Relative paths in the folder that the program uses, such as logs/*. The
        folders on the way to them are checked, too. They need not exist.

    Raises:
      OSError: A part is neither a regular file nor a folder. The error has its path.
    """
    for part in parts:
        for path in _existing(folder, part.split("/")):
            # lstat describes the link itself, where stat would follow it.
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                raise OSError(errno.ELOOP, "it is a link, which may lead out", path)
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise OSError(errno.EINVAL, "it is no file and no folder", path)


def _existing(folder: pathlib.Path, names: Sequence[str]) -> Iterator[pathlib.Path]:
    """Yields the existing paths that match, from the top, and follows no link."""
    first, *rest = names
    for path in sorted(folder.iterdir()):
        if first in ("*", path.name):
            yield path
            if rest and path.is_dir() and not path.is_symlink():
                yield from _existing(path, rest)
