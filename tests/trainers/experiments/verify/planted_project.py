"""Program that runs the project of the current folder, forked from that of the tests.

The process keeps TensorFlow and Keras of its template, whose imports take 2 s, and
imports the modules of the folder in place of the tested ones.
"""

from __future__ import annotations

import runpy
import sys

PACKAGES = ("strategies", "models", "trainers")


def main() -> None:
    """Runs the program with the arguments of the command line."""
    for name in [*sys.modules]:
        if name.partition(".")[0] in PACKAGES:
            del sys.modules[name]
    runpy.run_module("trainers.main", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
