"""Modules of a user that have the name of a package of this project.

This module imports neither TensorFlow nor Keras.
"""

import ast
import os
import pathlib
import sys
from collections.abc import Iterator

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_NAME = __name__.partition(".")[0]
_OF_CLONE = ("models", "strategies", "trainers")
# Packages of this project, which are loaded before a user's code runs. The wheel has
# them below one name.
OWN_PACKAGES = _OF_CLONE if _NAME in _OF_CLONE else (_NAME,)
_USE_WHEEL = "install the wheel of this project and start keras-strategies (BUILD.md)"


def check_names(path: str, option: str) -> None:
    """Refuses a file that imports a module which a package of this project hides.

    Python keeps one module of a name, and the program's own would not be found.

    Args:
      path: Path of the file. Modules in its folder that it imports are checked too,
        or those in the folder of its package.
      option: Option that names the file, for the message.

    Raises:
      ValueError: The file or a module beside it has such an import.
    """
    program = pathlib.Path(os.path.abspath(os.path.expanduser(path)))
    package = package_of(program)
    folder = program.parents[len(package)]
    # This project's own folder has these packages themselves.
    if folder.resolve() == _ROOT:
        return
    waiting, seen = [program], set[pathlib.Path]()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        for name in [*_imported(file), *package[:1]]:
            own = list(_files_of(folder, name))
            if own and name in OWN_PACKAGES:
                raise ValueError(
                    f"{option}: {file.name} imports {name}, and {own[0]} "
                    "has the name of a package of this project, which Python would "
                    f"import in its place: rename the module, or {_USE_WHEEL}."
                )
            waiting += own


def package_of(program: pathlib.Path) -> list[str]:
    """Returns the names of the package of which a program has to be a module.

    There are none for a program that `python program.py` runs. With a relative import
    outside of blocks it needs `python -m`, unless it sets `__package__`.
    """
    tree = _parsed(program)
    levels = [node.level for node in tree.body if isinstance(node, ast.ImportFrom)]
    is_set = any(
        isinstance(node, ast.Name)
        and node.id == "__package__"
        and isinstance(node.ctx, ast.Store)
        for node in ast.walk(tree)
    )
    if is_set or not any(levels):
        return []
    names, folder = list[str](), program.parent
    # Folders may be packages without the file.
    while len(names) < max(levels) or (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return names


def check_present_folder(root: pathlib.Path) -> None:
    """Refuses a folder in which the processes of a run would not start.

    They are modules of `strategies`, which Python takes from the present folder first.

    Args:
      root: Folder of this project's packages.

    Raises:
      ValueError: The present folder has another module of this name.
    """
    folder = pathlib.Path.cwd()
    if folder.samefile(root) or "strategies" not in OWN_PACKAGES or sys.flags.safe_path:
        return
    for path in (folder / "strategies.py", folder / "strategies" / "__init__.py"):
        if path.is_file():
            raise ValueError(
                f"{path} has the name of a package of this project, which Python would "
                f"import in its place: set PYTHONSAFEPATH=1, or {_USE_WHEEL}."
            )


def _parsed(file: pathlib.Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        # The program reports its error when it runs.
        return ast.Module([], [])


def _imported(file: pathlib.Path) -> list[str]:
    """Returns the top-level names of a file's absolute imports, sorted."""
    names = set()
    for node in ast.walk(_parsed(file)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return sorted(names)


def _files_of(folder: pathlib.Path, name: str) -> Iterator[pathlib.Path]:
    """Yields the files of a module or package in a folder; none without it."""
    module = folder / f"{name}.py"
    if module.is_file():
        yield module
    yield from sorted((folder / name).rglob("*.py"))
