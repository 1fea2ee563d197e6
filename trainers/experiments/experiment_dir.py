"""The folder of an experiment whose runs are not resumed."""

from __future__ import annotations

import pathlib
import shutil

from strategies.common.errors import UsageError
from strategies.common.files import FolderLock, new_folder, unusable
from trainers.run_dir.checkpoint_names import check_writable_run


class ExperimentDir:
    """Paths of a verification or prediction; the constructor writes nothing.

    runs/<name>/ are ordinary run folders, logs/ holds the output of each run, and
    <mode>.json holds the results.
    """

    def __init__(self, path: str | None, mode: str):
        """Takes --run_dir, or chooses a name with the mode and the time."""
        self.path = pathlib.Path(path) if path else new_folder(mode)
        self.result = self.path / f"{mode}.json"
        self.mode = mode
        self._runs = self.path / "runs"
        self._logs = self.path / "logs"
        self._lock = FolderLock(self.path)

    def run_path(self, name: str) -> pathlib.Path:
        return self._runs / name

    def log_path(self, name: str) -> pathlib.Path:
        return self._logs / f"{name}.log"

    def begin(self) -> None:
        """Creates the folder.

        Raises:
          UsageError: The folder is not empty, or it cannot be written.
        """
        try:
            check_writable_run(self.path)
            if self.path.exists() and any(self.path.iterdir()):
                raise UsageError(
                    f"--run_dir={self.path} is not empty: choose a new or empty folder "
                    f"for --mode={self.mode}."
                )
            # Creates the folder too, which the lock needs.
            self._logs.mkdir(parents=True)
            self._lock.acquire()
        except OSError as error:
            raise unusable(self.path, error) from error

    def take_back(self) -> None:
        """Removes the folders that `begin` created, after the runs were refused."""
        for path in (self._runs, self._logs):
            shutil.rmtree(path, ignore_errors=True)
        # Fails if anything else is in the folder, so that no foreign file is deleted.
        self.path.rmdir()
