"""A folder of short runs that are not continued, and of what they came to."""

from __future__ import annotations

import pathlib
import shutil

from strategies.common.errors import UsageError
from strategies.common.files import FolderLock, check_writable, new_folder, unusable


class FolderOfRuns:
    """Paths of a verification or prediction. Making this object writes nothing.

    runs/<name>/ are ordinary run folders, logs/ holds what each run printed, and
    <mode>.json what they came to.
    """

    def __init__(self, path: str | None, mode: str):
        """Takes --run_dir, or chooses a name that tells of the mode and when."""
        self.path = pathlib.Path(path) if path else new_folder(mode)
        self.result = self.path / f"{mode}.json"
        self._mode = mode
        self._runs = self.path / "runs"
        self._logs = self.path / "logs"
        self._lock = FolderLock(self.path)

    def run_path(self, name: str) -> pathlib.Path:
        return self._runs / name

    def log_path(self, name: str) -> pathlib.Path:
        return self._logs / f"{name}.log"

    def begin(self) -> None:
        """Makes the folder.

        Raises:
          UsageError: it holds something already, or cannot be written.
        """
        try:
            check_writable(self.path, f"--run_dir={self.path}")
            if self.path.exists() and any(self.path.iterdir()):
                raise UsageError(
                    f"--run_dir={self.path} is not empty: choose a new or empty folder "
                    f"for --mode={self._mode}."
                )
            self._logs.mkdir(parents=True)
            self._lock.acquire()
        except OSError as error:
            raise unusable(self.path, error) from error

    def take_back(self) -> None:
        """Removes what `begin` made, because the runs are refused."""
        for path in (self._runs, self._logs):
            shutil.rmtree(path, ignore_errors=True)
        self.path.rmdir()
