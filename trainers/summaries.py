"""TensorBoard event files: the only place that touches tf.summary.

Tags are the same under every strategy, and a quantity has one tag under both
tb/train, tb/eval and tb/evaluator, so that curves overlay.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorboard.plugins.histogram import metadata as histogram_metadata
from tensorboard.plugins.hparams import api as hparams_api

TRAIN = "train"
EVAL = "eval"
EVALUATOR = "evaluator"
_HPARAM_METRICS = (
    (EVAL, "accuracy"),
    (EVAL, "loss"),
    (TRAIN, "loss"),
    (TRAIN, "examples_per_second"),
)


class Summaries:
    """Writes what a run reports into its tb folder."""

    def __init__(self, folder: pathlib.Path, splits: Sequence[str] = (TRAIN, EVAL)):
        self._folder = folder
        self._writers = {
            split: tf.summary.create_file_writer(str(folder / split))
            for split in splits
        }

    def scalars(self, split: str, values: Mapping[str, float], step: int) -> None:
        """Writes each value under its name.

        Args:
          split: `TRAIN`, `EVAL` or `EVALUATOR`.
          values: by tag.
          step: applied updates.
        """
        with self._writers[split].as_default(step=step):
            for tag, value in values.items():
                tf.summary.scalar(tag, value)

    def histograms(self, buckets: Mapping[str, np.ndarray], step: int) -> None:
        """Writes histograms that were counted where the tensors are.

        Args:
          buckets: by tag, [n, 3]: left edge, right edge and count of each bucket.
          step: applied updates.
        """
        metadata = histogram_metadata.create_summary_metadata(None, None)
        with self._writers[TRAIN].as_default(step=step):
            for tag, rows in buckets.items():
                tf.summary.write(tag, tf.constant(rows, tf.float64), metadata=metadata)

    def image(self, tag: str, pixels: np.ndarray, step: int) -> None:
        """Writes one picture of evaluation, uint8 [height, width, 3]."""
        with self._writers[EVAL].as_default(step=step):
            tf.summary.image(tag, pixels[np.newaxis])

    def texts(self, texts: Mapping[str, str]) -> None:
        """Writes Markdown that describes the run."""
        with self._writers[TRAIN].as_default(step=0):
            for tag, text in texts.items():
                tf.summary.text(tag, text)

    def graph(self, graph: tf.Graph) -> None:
        """Writes the operations of the training loop.

        Keras's own TensorBoard callback writes none under Keras 3.
        """
        with self._writers[TRAIN].as_default(step=0):
            tf.summary.graph(graph)

    def hparams(self, settings: Mapping[str, Any]) -> None:
        """Writes the row of the HParams dashboard.

        It goes into the folder above train and eval, because the dashboard finds a
        metric in the run that is called after the row's own folder and the
        metric's group.
        """
        writer = tf.summary.create_file_writer(str(self._folder))
        metrics = [
            hparams_api.Metric(tag, group=group) for group, tag in _HPARAM_METRICS
        ]
        with writer.as_default(step=0):
            names = [hparams_api.HParam(name) for name in settings]
            hparams_api.hparams_config(hparams=names, metrics=metrics)
            # By default a digest of the settings: runs that differ in none of them
            # would share a row.
            name = "/".join(self._folder.absolute().parent.parts[-2:])
            hparams_api.hparams(dict(settings), trial_id=name)
        writer.close()

    def flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


def table(header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    """A Markdown table, as TensorBoard's text dashboard shows it."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
