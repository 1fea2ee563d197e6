"""Build of the wheel, in which all packages are below one name, `keras_strategies`.

In a clone the packages are `strategies`, `models`, `trainers` and `examples`. Installed
under such names they would hide packages that users have. So the wheel has them as
`keras_strategies.strategies` and so on, with their imports changed accordingly.
"""

from __future__ import annotations

import pathlib
import re

from setuptools import setup
from setuptools.command.build_py import build_py

NAME = "keras_strategies"
PACKAGES = ("strategies", "models", "trainers", "examples")
_ANY = "|".join(PACKAGES)
# Statements, names of modules in strings, and command lines in texts.
_CHANGES = (
    (rf"^(\s*)from ({_ANY})(?=[.\s])", rf"\1from {NAME}.\2"),
    (rf"^(\s*)import ({_ANY})$", rf"\1from {NAME} import \2"),
    (rf"""(?<=["'])({_ANY})\.(?=[\w{{])""", rf"{NAME}.\1."),
    (r"python -m trainers\.main", "keras-strategies"),
    (rf"python -m ({_ANY})\.", rf"python -m {NAME}.\1."),
)


class BuildBelowOneName(build_py):
    """Copies the packages below one name."""

    def run(self) -> None:
        if self.editable_mode:
            raise SystemExit(
                "pip install --editable is not supported: in a clone, run `make "
                "install` and `python -m trainers.main`."
            )
        root = pathlib.Path(__file__).parent
        target = pathlib.Path(self.build_lib) / NAME
        for package in PACKAGES:
            for path in sorted((root / package).rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    copy(path, target / path.relative_to(root))
        # The Python API under the name of the package.
        copy(root / "trainers/__init__.py", target / "__init__.py")
        (target / "py.typed").touch()


def copy(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies a file, with the imports of a module changed to the one name."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix == ".py":
        text = source.read_text(encoding="utf-8")
        target.write_text(below_one_name(text), encoding="utf-8")
    else:
        target.write_bytes(source.read_bytes())


def below_one_name(text: str) -> str:
    """Returns the text of a module with the packages below the one name."""
    for pattern, replacement in _CHANGES:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


if __name__ == "__main__":
    # setuptools wants a folder for the package; `BuildBelowOneName` fills it.
    setup(
        packages=[NAME],
        package_dir={NAME: "trainers"},
        cmdclass={"build_py": BuildBelowOneName},
    )
