"""TensorBoard event files.

No other module uses tf.summary. Tags are equal under every strategy, and a quantity has
the same tag in tb/train, tb/eval and tb/evaluator, so that curves overlay.
"""

import contextlib
import io
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import summary as custom_scalars
from tensorboard.plugins.histogram import metadata as histogram_metadata
from tensorboard.plugins.hparams import api as hparams_api
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.plugins.image import metadata as image_metadata
from tensorboard.plugins.scalar.summary_v2 import scalar_pb

from strategies.common.files import is_url
from strategies.common.write_errors import WriteErrorReporter
from trainers.model.confusion_matrix import CONFUSION_MATRIX
from trainers.reporting.step_graph import step_graph
from trainers.run_dir.event_dir import remote_errors

TRAIN = "train"
EVAL = "eval"
EVALUATOR = "evaluator"
# More than the reports of one step without images.
_LEAST_BYTES = 1 << 20
_REMOTE_FLUSH_MILLISECONDS = 30_000
# A bucket that does not answer blocks the training thread for seconds.
_REMOTE_RETRY_SECONDS = 60.0
# Metrics of training in the HParams dashboard.
_TRAIN_METRICS = ("loss", "examples_per_second")
_EVALUATED = "Train and eval"
# Tags of quantities of a run, which a program's metric may have as its name.
_RESERVED_TAGS = {
    "learning_rate", "gradient_norm", "weight_norm", "gradient_noise_scale",
    "examples_per_second", "staleness", CONFUSION_MATRIX,
}  # fmt: skip
# By chart the tags in it, as regular expressions.
_LAYOUT = {
    "Where the time goes": {
        "milliseconds a step": "^step_milliseconds/",
        "examples a second": "^examples_per_second$",
    },
    "The update": {
        "norms": "_norm$",
        "learning rate": "^learning_rate$",
        "staleness": "^staleness/",
    },
}

# TensorFlow does not report that a record does not fit on the disk if it is longer than
# the buffer of a file, 4 KiB.
_SCALARS_IN_A_RECORD = 16


class Summaries:
    """Writer of a run's TensorBoard event files.

    Splits are `TRAIN`, `EVAL` and `EVALUATOR`; a step is a number of applied updates.

    A full or failing disk costs summaries, not the run. An event file may then end with
    a partial record, after which TensorBoard reads no more records, so later summaries
    go into new files.
    """

    def __init__(
        self,
        folder: str,
        write_errors: WriteErrorReporter,
        splits: Sequence[str] = (TRAIN, EVAL),
        run_name: str = "",
    ):
        """Creates the event files.

        Args:
          folder: Path or URL of the folder of the run's event files.
          write_errors: Warnings about failing writes. The caller of `flush` reports
            recovery.
          splits: Names of the folders with an event file each.
          run_name: Name of the run's row in the HParams dashboard.
        """
        self._folder = folder
        self._write_errors = write_errors
        self._splits = splits
        self._run_name = run_name
        self._retry_time = 0.0
        self._writers: dict[str, tf.summary.SummaryWriter] = {}
        self._attempt(self._open)

    def scalars(self, split: str, values: Mapping[str, float], step: int) -> None:
        """Writes scalars by tag."""
        # Several in a record: `tf.summary.scalar` takes 0.55 ms for each. Concatenated
        # messages of protobuf are one message with the values of all.
        encoded = [scalar_pb(t, v).SerializeToString() for t, v in values.items()]

        def write() -> None:
            for start in range(0, len(encoded), _SCALARS_IN_A_RECORD):
                record = b"".join(encoded[start : start + _SCALARS_IN_A_RECORD])
                tf.summary.experimental.write_raw_pb(record)

        self._write(split, step, write)

    def histograms(self, buckets: Mapping[str, np.ndarray], step: int) -> None:
        """Writes histograms by tag, counted on the devices of their tensors.

        Each is [n, 3]: left edge, right edge and count of each bucket.
        """
        metadata = histogram_metadata.create_summary_metadata(None, None)

        def write() -> None:
            for tag, rows in buckets.items():
                # tf.summary.histogram would count again; this writes the finished
                # buckets.
                tf.summary.write(tag, tf.constant(rows, tf.float64), metadata=metadata)

        self._write(TRAIN, step, write)

    def image(self, split: str, tag: str, pixels: np.ndarray, step: int) -> None:
        """Writes one image, uint8 [height, width, 3]."""
        metadata = image_metadata.create_summary_metadata(None, None)

        def write() -> None:
            # tf.summary.image takes 0.1 s for its first picture, this 0.01 s.
            png = io.BytesIO()
            Image.fromarray(pixels).save(png, "png")
            height, width, _ = pixels.shape
            content = tf.constant([str(width), str(height), png.getvalue()])
            tf.summary.write(tag, content, metadata=metadata)

        self._write(split, step, write)

    def texts(self, texts: Mapping[str, str]) -> None:
        """Writes Markdown texts by tag, which describe the run."""

        def write() -> None:
            for tag, text in texts.items():
                tf.summary.text(tag, text)

        self._write(TRAIN, 0, write)

    def graph(self, graph: tf.Graph) -> None:
        """Writes the graph of the training loop.

        Keras's own TensorBoard callback writes no graph under Keras 3.
        """
        self._write(TRAIN, 0, lambda: tf.summary.graph(step_graph(graph)))

    def hparams(self, settings: Mapping[str, Any]) -> None:
        """Writes the run's row of the HParams dashboard."""
        # By default the row is named by a digest of the settings: runs that differ in
        # none of them would share a row.
        row = hparams_api.hparams_pb(dict(settings), trial_id=self._run_name)
        self._write_above(row)

    def hparam_columns(self, settings: Sequence[str], metrics: Sequence[str]) -> None:
        """Writes the columns of the HParams dashboard, the first setting first.

        The dashboard sorts settings by name and puts settings that differ between runs
        before the others; only the first setting is marked as such
        (tensorboard/plugins/hparams/backend_context.py,
        `_sort_and_reduce_to_hparams_limit`).
        """
        summary = hparams_api.hparams_config_pb(
            hparams=[hparams_api.HParam(name) for name in settings],
            metrics=[
                *(hparams_api.Metric(name, group=EVAL) for name in metrics),
                *(hparams_api.Metric(name, group=TRAIN) for name in _TRAIN_METRICS),
            ],
        )
        plugin = summary.value[0].metadata.plugin_data
        content = plugin_data_pb2.HParamsPluginData.FromString(plugin.content)
        content.experiment.hparam_infos[0].differs = True
        plugin.content = content.SerializeToString()
        self._write_above(summary)

    def layout(self, metrics: Sequence[str]) -> None:
        """Writes the charts of the Custom Scalars dashboard.

        Train and eval have a run each in TensorBoard, with the same tags.
        """
        evaluated = {name: f"^{re.escape(name)}$" for name in metrics}
        content = layout_pb2.Layout(
            category=[
                layout_pb2.Category(
                    title=title,
                    chart=[
                        layout_pb2.Chart(
                            title=name,
                            multiline=layout_pb2.MultilineChartContent(tag=[tag]),
                        )
                        for name, tag in charts.items()
                    ],
                )
                for title, charts in {_EVALUATED: evaluated, **_LAYOUT}.items()
            ]
        )
        self._write_above(custom_scalars.pb(content))

    def flush(self) -> bool:
        """Flushes all event files to disk and returns whether that succeeded.

        The writers of a remote folder flush themselves, see `_open`.
        """
        # No writers: an earlier write has failed.
        if not self._writers and self._can_retry():
            self._attempt(self._open)
        if not is_url(self._folder):
            for writer in list(self._writers.values()):
                self._attempt(writer.flush)
        return bool(self._writers)

    def close(self) -> None:
        for writer in list(self._writers.values()):
            self._attempt(writer.close)

    def _write_above(self, summary: Any) -> None:
        """Writes a protocol buffer into the folder above train and eval."""

        def write() -> None:
            writer = tf.summary.create_file_writer(self._folder)
            with writer.as_default(step=0):
                tf.summary.experimental.write_raw_pb(summary.SerializeToString())
            writer.close()

        self._attempt(write)

    def _open(self) -> None:
        options = {}
        if is_url(self._folder):
            # An object cannot be appended to: each flush uploads the whole file again,
            # in the thread that trains.
            options = {"max_queue": 1 << 20, "flush_millis": _REMOTE_FLUSH_MILLISECONDS}
        self._writers = {
            split: tf.summary.create_file_writer(f"{self._folder}/{split}", **options)
            for split in self._splits
        }

    def _write(self, split: str, step: int, write: Callable[[], object]) -> None:
        if split not in self._writers:
            return

        def write_there() -> None:
            with self._writers[split].as_default(step=step):
                write()

        self._attempt(write_there)

    def _attempt(self, write: Callable[[], object]) -> None:
        def write_there() -> None:
            with remote_errors(self._folder):
                write()

        what = f"summaries in {self._folder} cannot be written"
        if not self._write_errors.attempt(what, write_there):
            # Drops all writers, because an event file may end with a partial record.
            self._writers = {}
            self._retry_time = time.monotonic() + _REMOTE_RETRY_SECONDS

    def _can_retry(self) -> bool:
        """Returns whether a retry is worthwhile."""
        if is_url(self._folder):
            return time.monotonic() >= self._retry_time
        # Each failed attempt would leave an empty file.
        with contextlib.suppress(OSError):
            return shutil.disk_usage(self._folder).free >= _LEAST_BYTES
        return False


def by_tag(means: Mapping[str, float]) -> dict[str, float]:
    """Returns losses and metrics by tag, equal in training and evaluation."""
    return {f"metrics/{n}" if n in _RESERVED_TAGS else n: v for n, v in means.items()}


def table(header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    """Returns a Markdown table for TensorBoard's text dashboard."""
    lines = [header, ("---",) * len(header), *rows]
    # A bar in a cell would end it.
    cells = [[str(cell).replace("|", r"\|") for cell in line] for line in lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)
