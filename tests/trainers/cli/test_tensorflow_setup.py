"""Loading of TensorFlow."""

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
import keras, matplotlib.pyplot, sklearn.base, tensorflow
print(json.dumps({
    "absent": absent,
    "has_wrappers": [
        kind.__name__
        for package in (keras, tensorflow.keras, keras.src)
        for kind in package.wrappers.SKLearnClassifier.__mro__
        if kind is sklearn.base.BaseEstimator
    ],
    "has_galleries": keras.visualization.plot_image_gallery.__globals__["plt"]
    is matplotlib.pyplot,
    "has_others": hasattr(keras, "nothing"),
    "collects": gc.isenabled(),
    "left_alone": gc.get_freeze_count() > 100_000,
    "sum": sorted({"AddN", "TemporaryVariable"} & operations_of_a_large_sum()),
}))
"""


def test_tensorflow_is_loaded_without_what_does_harm() -> None:
    """Keras without packages that few programs need, which a program still gets."""
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
        "has_wrappers": ["BaseEstimator"] * 3,
        "has_galleries": True,
        "has_others": False,
        "collects": True,
        "left_alone": True,
        "sum": ["AddN"],
    }
