"""The folder of a verification."""

from __future__ import annotations

import pathlib
import shutil

from strategies.settings import UsageError
from trainers.files import FolderLock, new_folder, unusable


class VerificationFolder:
    """Paths of a verification. Making this object writes nothing.

    runs/<name>/ are ordinary run folders with what each step did in recording/, logs/
    holds what each run printed, and verify.json what it came to.
    """

    def __init__(self, path: str | None):
        """Takes --run_dir, or chooses a name that tells when."""
        self.path = pathlib.Path(path) if path else new_folder("verify")
        self.result = self.path / "verify.json"
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
            if self.path.exists() and any(self.path.iterdir()):
                raise UsageError(
                    f"--run_dir={self.path} is not empty: choose a new or empty folder "
                    "for a verification."
                )
            self._logs.mkdir(parents=True)
            self._lock.acquire()
        except OSError as error:
            raise unusable(self.path, error) from error

    def take_back(self) -> None:
        """Removes what `begin` made, because nothing can be verified."""
        for path in (self._runs, self._logs):
            shutil.rmtree(path, ignore_errors=True)
        self.path.rmdir()
