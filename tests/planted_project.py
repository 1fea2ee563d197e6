"""Program that runs a module of the project in the current folder.

    python -m tests.planted_project MODULE ARGUMENTS

Forked from the template of the tests, the process keeps TensorFlow and Keras, whose
imports take 2 s, and imports the project of the folder in place of the tested one.
"""

import runpy
import sys

PACKAGES = ("strategies", "models", "trainers")


def main() -> None:
    """Runs the module with its arguments."""
    for name in [*sys.modules]:
        if name.partition(".")[0] in (*PACKAGES, "tests"):
            del sys.modules[name]
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
