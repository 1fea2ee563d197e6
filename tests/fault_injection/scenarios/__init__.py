"""Scenarios in one module for each kind of fault, which has `SCENARIOS`."""

import importlib
import pkgutil
from collections.abc import Sequence

from tests.fault_injection.scenario import Scenario


def all_scenarios() -> Sequence[Scenario]:
    """Returns the scenarios of all modules of this folder, by the modules' names."""
    found: list[Scenario] = []
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        found += importlib.import_module(f"{__name__}.{name}").SCENARIOS
    return found
