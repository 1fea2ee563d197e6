"""Files that a path on the command line refers to."""

import glob
from collections.abc import Iterator
from pathlib import Path

from strategies.common.errors import UsageError

_PATTERNS = ("*.tfrecord", "*.tfrecord.gz")
_ADVICE = (
    "give TFRecord files, folders of *.tfrecord and *.tfrecord.gz files, or patterns "
    "such as data/part-*, separated by commas"
)


def find_files(data_path: str, flag: str) -> list[Path]:
    """Returns the files of a path, or of several paths separated by commas.

    A path is a file, a folder with *.tfrecord and *.tfrecord.gz files, or a pattern
    with * ? [ ] or **. The files of a folder or pattern are sorted by name.

    Raises:
      UsageError: A path has no file to read, or one file is listed twice.
    """
    files: list[Path] = []
    for part in _parts(data_path):
        found, problem = _files_of(part)
        if not found:
            named = "" if part == data_path else f": {part!r}"
            raise UsageError(f"--{flag}={data_path}{named} {problem}: {_ADVICE}.")
        files += found
    # A file listed twice would count its examples twice, by a link as well.
    listed: dict[Path, Path] = {}
    for file in files:
        other = listed.setdefault(file.resolve(), file)
        if other is not file:
            linked = "" if str(other) == str(file) else f", as {str(other)!r},"
            raise UsageError(
                f"--{flag}={data_path} has {str(file)!r}{linked} twice: leave one of "
                "them out."
            )
    return files


def _parts(data_path: str) -> list[str]:
    """Splits a path at its commas, unless it is one file with a comma in its name."""
    try:
        is_one = Path(data_path).exists()
    except OSError:
        # A path that cannot be read is one path: the error names it as it was given.
        is_one = True
    return [data_path] if is_one else data_path.split(",")


def _files_of(part: str) -> tuple[list[Path], str]:
    """Returns the files of a path, and the problem if there are none."""
    if not part:
        return [], "is no path"
    path = Path(part)
    try:
        if path.is_file():
            return [path], ""
        if path.is_dir():
            return sorted(_matching(path)), f"is a folder without {_PATTERNS[0]} files"
        if path.exists():
            return [], "is neither a file nor a folder"
        # After `exists`: a file may have such characters in its name.
        if glob.has_magic(part):
            found = map(Path, glob.glob(part, recursive=True))
            return sorted(p for p in found if p.is_file()), "matches no file"
    except OSError as error:
        return [], f"cannot be read ({error.strerror})"
    return [], "does not exist"


def _matching(folder: Path) -> Iterator[Path]:
    return (path for name in _PATTERNS for path in folder.glob(name) if path.is_file())
