"""The folder of a verification."""

from __future__ import annotations

import os
import pathlib
import shutil
import time

from strategies.settings import UsageError
from trainers.files import FolderLock


class VerificationFolder:
    """Paths of a verification. Making this object writes nothing.

    runs/<name>/ are ordinary run folders with what each step did in recording/, logs/
    holds what each run printed, and verify.json what it came to.
    """

    def __init__(self, path: str | None):
        """Takes --run_dir, or chooses a name that tells when."""
        when = time.strftime("%Y%m%d-%H%M%S")
        self.path = pathlib.Path(path or f"runs/verify-{when}-{os.getpid()}")
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
            raise UsageError(
                f"--run_dir={self.path} cannot be used ({error.strerror}): mend that, "
                "or choose another folder."
            ) from error

    def take_back(self) -> None:
        """Removes what `begin` made, because nothing can be verified."""
        for path in (self._runs, self._logs):
            shutil.rmtree(path, ignore_errors=True)
        self.path.rmdir()
