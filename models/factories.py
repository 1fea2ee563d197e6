"""Factories in the user's code: `package.module:function` or `file.py:function`.

Such a name is code that will run. It is accepted from the command line only.
"""

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import os
import pathlib
import re
import sys
import types
from collections.abc import Callable
from typing import Any

from models import catalogue
from models.name_collisions import check_names

FORM = "package.module:factory or path/to/file.py:factory"
# For `fnmatch`, where nothing else has a colon in it.
PATTERN = "*:*"
# The examples of this project are found from any folder.
_EXAMPLES = "examples"
# Empty in a clone. In the wheel all packages are below this name (setup.py).
_PACKAGE_PREFIX = __name__.rpartition("models")[0]
_FACTORY = re.compile(
    r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*|[^:]+\.py):(?P<name>[A-Za-z_]\w*)"
)


class FactoryError(ValueError):
    """Error for a name that leads to no factory; the message names flag and remedy."""


def is_factory(name: str) -> bool:
    """Returns whether a name has the form of a factory's; imports nothing."""
    return not name.startswith(catalogue.PREFIX) and bool(_FACTORY.fullmatch(name))


def check_package(name: str, flag: str) -> None:
    """Checks that the package of a factory exists, without running the user's code.

    Raises:
      FactoryError: There is no such file, or no package or module at the top level.
      ValueError: The file imports a module that a package of this project hides.
    """
    module = _parts(name)[0]
    if _is_file(module):
        if not pathlib.Path(module).is_file():
            raise FactoryError(f"--{flag}={name}: there is no file {module}.")
        check_names(module, f"--{flag}={name}")
        return
    package = module.partition(".")[0]
    # `find_spec` of a dotted name would import the parent package.
    if importlib.util.find_spec(package) is None:
        raise FactoryError(_no_module(name, flag, package))


def factory(name: str, flag: str, argument: str | None = None) -> Callable[..., Any]:
    """Imports the module of a factory and returns the factory.

    Args:
      name: Name of the factory.
      flag: Flag that has given the name.
      argument: Argument of a factory that needs one; None for no argument.

    Raises:
      FactoryError: There is no such module, or it has no such function, or the function
        needs other arguments.
    """
    module_name, attribute = _parts(name)
    try:
        module = _module(module_name)
    except ModuleNotFoundError as error:
        # A module that the user's module imports is missing: that error is the user's.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise FactoryError(_no_module(name, flag, error.name)) from error
    found = getattr(module, attribute, None)
    if not callable(found):
        raise FactoryError(
            f"--{flag}={name}: {module_name} has no function {attribute}; it has "
            f"{_choices(module, attribute)}."
        )
    _check_arguments(found, f"--{flag}={name}", argument)
    return found


def needs_an_argument(function: Callable[..., Any]) -> bool:
    """Returns whether a function has an argument without a default."""
    return any(
        one.default is one.empty
        and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        for one in inspect.signature(function).parameters.values()
    )


def _check_arguments(
    function: Callable[..., Any], title: str, argument: str | None
) -> None:
    """Refuses a function that cannot be called with the argument, or with nothing."""
    given = [argument] if argument and needs_an_argument(function) else []
    try:
        inspect.signature(function).bind(*given)
    except TypeError as error:
        called = f"{argument} as its only argument" if argument else "no argument"
        raise FactoryError(
            f"{title}: {error}; the function is called with {called}: give each other "
            "argument a default value."
        ) from error


def _choices(module: types.ModuleType, name: str) -> str:
    """Returns the functions of a module in words, and the closest to a name."""
    # Only functions that the module defines, not those it imports.
    public = [
        key
        for key, value in vars(module).items()
        if callable(value)
        and getattr(value, "__module__", "") == module.__name__
        and not key.startswith("_")
    ]
    near = difflib.get_close_matches(name, public, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return (", ".join(public) or "none") + hint


def _is_file(module: str) -> bool:
    return module.endswith(".py")


def _module(module: str) -> types.ModuleType:
    """Imports a module by its name or from its file, once."""
    if not _is_file(module):
        return importlib.import_module(module)
    path = pathlib.Path(module).absolute()
    # The hash keeps it apart from every other module, such as this project's `models`.
    name = f"_file_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"
    if name not in sys.modules:
        # The file can import the modules beside it, as a program can.
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))
        # Entered before it runs, as Python does: classes are pickled by it.
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ValueError(f"{module} is no file that Python can run.")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[name])
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _parts(name: str) -> tuple[str, str]:
    found = _FACTORY.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is not of the form {FORM}")
    module = found["module"]
    if _is_file(module):
        return os.path.expanduser(module), found["name"]
    package = module.partition(".")[0]
    if package == _EXAMPLES and importlib.util.find_spec(_EXAMPLES) is None:
        module = _PACKAGE_PREFIX + module
    return module, found["name"]


def _no_module(name: str, flag: str, module: str) -> str:
    return (
        f"--{flag}={name}: there is no module {module}; add the folder that has it "
        "to PYTHONPATH."
    )
