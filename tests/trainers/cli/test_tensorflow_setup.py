"""How TensorFlow is loaded."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.processes import ROOT

SCRIPT = """
import gc, json, sys
from trainers.cli import flags
from trainers.cli.tensorflow_setup import load_tensorflow

load_tensorflow(flags.parse(["main", "--model=mlp"]))
absent = [name for name in ("sklearn", "matplotlib") if name not in sys.modules]
from tests.test_tensorflow_facts import operations_of_a_large_sum
import keras, matplotlib.pyplot, sklearn.base
print(json.dumps({
    "absent": absent,
    "keras": keras.src.wrappers.fixes.sklearn is None,
    "collects": gc.isenabled(),
    "left_alone": gc.get_freeze_count() > 100_000,
    "sum": sorted({"AddN", "TemporaryVariable"} & operations_of_a_large_sum()),
}))
"""


def test_tensorflow_is_loaded_without_what_does_harm() -> None:
    """Keras without what it can do without, which a model of the user's can import."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "absent": ["sklearn", "matplotlib"],
        "keras": True,
        "collects": True,
        "left_alone": True,
        "sum": ["AddN"],
    }
