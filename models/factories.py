"""Functions of the user's own, by the name `package.module:function`.

Such a name is code that will run. It is taken from the command line only.
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
_FACTORY = re.compile(
    r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*)"
)


def is_factory(name: str) -> bool:
    """Whether this is the form of such a name; imports nothing."""
    return not name.startswith(catalogue.PREFIX) and bool(_FACTORY.fullmatch(name))


def check_package(name: str, flag: str) -> None:
    """What can be known without running anything of the user's.

    Raises:
      ValueError: there is no such package or module at the top level.
    """
    package = _parts(name)[0].partition(".")[0]
    if importlib.util.find_spec(package) is None:
        raise ValueError(_no_module(name, flag, package))


def factory(name: str, flag: str) -> Callable[..., Any]:
    """Imports the module and returns what it has by that name.

    Args:
      name: as `is_factory` accepts it.
      flag: that it was given for.

    Raises:
      ValueError: there is no such module, or nothing in it that can be called.
    """
    module_name, attribute = _parts(name)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ValueError(_no_module(name, flag, error.name)) from error
    found = getattr(module, attribute, None)
    if not callable(found):
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
    """What the module of a factory has by another name, if it has."""
    return getattr(importlib.import_module(_parts(name)[0]), attribute, None)


def _parts(name: str) -> tuple[str, str]:
    found = _FACTORY.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is not of the form {FORM}")
    return found["module"], found["name"]


def _no_module(name: str, flag: str, module: str) -> str:
    return (
        f"--{flag}={name}: there is no module {module}; add the folder that has it "
        "to PYTHONPATH."
    )
