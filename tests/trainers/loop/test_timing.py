"""Wall time of a process."""

import subprocess
import sys
import time

import pytest

from tests import processes

# A start is known to a tick of the kernel, which is 10 ms.
_TICK_SECONDS = 0.02

_PROGRAM = """
import time
from trainers.loop.timing import seconds_since_start
print(time.clock_gettime(time.CLOCK_BOOTTIME) - seconds_since_start())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other clocks")
def test_the_start_of_a_process_is_known_to_a_tick() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    child = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdout=subprocess.PIPE,
        text=True,
        cwd=processes.ROOT,
    )
    after = time.clock_gettime(time.CLOCK_BOOTTIME)
    started = float(child.communicate(timeout=processes.PATIENCE_SECONDS)[0])
    assert before - _TICK_SECONDS <= started <= after + _TICK_SECONDS
