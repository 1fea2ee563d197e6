"""What a benchmark ran on, and where its results go."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping
from typing import Any

from strategies.common.native_log import native_log_hidden

RESULTS = pathlib.Path(__file__).parent / "results"


def machine() -> Mapping[str, Any]:
    """Its `name`, such as `2x Intel(R) Xeon(R) Processor`, and what result.json has."""
    # TensorFlow, which takes seconds and is not needed before.
    with native_log_hidden():
        from trainers.reporting.result import hardware

        found = hardware()
    return {"name": f"{found['cpu_cores']}x {found['cpu']}", **found}


def name_in_files(found: Mapping[str, Any]) -> str:
    """Of a machine, as part of the name of a file."""
    return re.sub(r"\W+", "-", found["name"]).strip("-").lower()
