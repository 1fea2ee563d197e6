"""Functions that read TensorBoard event files the way TensorBoard does."""

import dataclasses
import pathlib
from collections import defaultdict

import numpy as np
import tensorflow as tf
from tensorboard.backend.event_processing import event_file_loader
from tensorboard.compat.proto.event_pb2 import Event


@dataclasses.dataclass(frozen=True)
class Point:
    """A value of a tag at a step."""

    step: int
    plugin: str
    value: np.ndarray


@dataclasses.dataclass(frozen=True)
class Events:
    """The contents of the event files of a folder.

    Attributes:
      points: Values by tag, in the order in which they were written.
      graphs: Serialized graph definitions.
    """

    points: dict[str, list[Point]]
    graphs: list[bytes]

    def scalars(self, tag: str) -> dict[int, float]:
        return {point.step: float(point.value) for point in self.points[tag]}

    def plugins(self) -> dict[str, set[str]]:
        """Returns the tags by the plugin that shows them."""
        tags = defaultdict(set)
        for tag, points in self.points.items():
            tags[points[0].plugin].add(tag)
        return dict(tags)


def read_events(folder: pathlib.Path) -> Events:
    """Returns all events of a folder, without its subfolders."""
    points: dict[str, list[Point]] = defaultdict(list)
    graphs = []
    plugins: dict[str, str] = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in event_file_loader.EventFileLoader(str(path)).Load():
            if event.HasField("graph_def"):
                graphs.append(event.graph_def)
            for value in event.summary.value:
                name = value.metadata.plugin_data.plugin_name
                plugins.setdefault(value.tag, name)
                points[value.tag].append(_point(event, value, plugins[value.tag]))
    return Events(points=dict(points), graphs=graphs)


def _point(event: Event, value: Event, plugin: str) -> Point:
    array = tf.make_ndarray(value.tensor) if value.HasField("tensor") else np.array(0)
    return Point(step=event.step, plugin=plugin, value=array)
