"""Factories in the user's code, named `package.module:function`.

Such a name is code that will run. It is accepted from the command line only.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable
from typing import Any

from models import catalogue

FORM = "package.module:factory"
# For `fnmatch`, where nothing else has a colon in it.
PATTERN = "*:*"
# The examples of this project are found from any folder.
_EXAMPLES = "examples"
_BELOW = __name__.rpartition("models")[0]
_FACTORY = re.compile(
    r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*)"
)


def is_factory(name: str) -> bool:
    """Returns whether a name has the form of a factory's; imports nothing."""
    return not name.startswith(catalogue.PREFIX) and bool(_FACTORY.fullmatch(name))


def check_package(name: str, flag: str) -> None:
    """Checks that the package of a factory exists, without running the user's code.

    Raises:
      ValueError: There is no such package or module at the top level.
    """
    package = _parts(name)[0].partition(".")[0]
    # `find_spec` of a dotted name would import the parent package.
    if importlib.util.find_spec(package) is None:
        raise ValueError(_no_module(name, flag, package))


def factory(name: str, flag: str) -> Callable[..., Any]:
    """Imports the module of a factory and returns the factory.

    Args:
      name: Name that `is_factory` accepts.
      flag: Flag that the name was given for.

    Raises:
      ValueError: There is no such module, or it has no such function.
    """
    module_name, attribute = _parts(name)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A module that the user's module imports is missing: that error is the user's.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ValueError(_no_module(name, flag, error.name)) from error
    found = getattr(module, attribute, None)
    if not callable(found):
        # Only functions that the module defines, not those it imports.
        own = [
            key
            for key, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module_name
        ]
        raise ValueError(
            f"--{flag}={name}: {module_name} has no function {attribute}; it has "
            f"{', '.join(own) or 'none'}."
        )
    return found


def beside(name: str, attribute: str) -> Callable[..., Any] | None:
    """Returns another attribute of a factory's module, or None."""
    return getattr(importlib.import_module(_parts(name)[0]), attribute, None)


def _parts(name: str) -> tuple[str, str]:
    found = _FACTORY.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is not of the form {FORM}")
    module = found["module"]
    package = module.partition(".")[0]
    if package == _EXAMPLES and importlib.util.find_spec(_EXAMPLES) is None:
        module = _BELOW + module
    return module, found["name"]


def _no_module(name: str, flag: str, module: str) -> str:
    return (
        f"--{flag}={name}: there is no module {module}; add the folder that has it "
        "to PYTHONPATH."
    )
