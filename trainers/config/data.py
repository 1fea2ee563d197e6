"""Settings of data sets."""

import dataclasses
import math
from typing import ClassVar

from models import factories
from strategies.common.errors import UsageError
from strategies.common.fields import check_settings, setting

# Path setting -> data sets that read it.
_READ_BY = {"data_path": ("tfrecord", "cifar10"), "eval_data_path": ("tfrecord",)}
PATHS = tuple(_READ_BY)
# 2**31 float32 numbers take 8 GiB. Larger random data reveals nothing more about speed.
_MOST_SYNTHETIC_NUMBERS = 2**31
# Upper bounds of rows x columns: 2**30 int64 ids take 8 GiB; 2**27 embedding rows of 16
# float32 numbers take 8 GiB.
_MOST_CLICKS = {"num_examples": 2**30, "num_categories": 2**27}
_DATASETS = ("cifar10", "clicks", "digits", "synthetic", "tfrecord")


def _why_not(name: str) -> str | None:
    if factories.is_factory(name):
        return None
    if name.endswith(".py"):
        return f"names a file and no function: give {name}:FUNCTION."
    return (
        f"is unknown; choose one of {', '.join(_DATASETS)}, or {factories.FORM}, your "
        "own."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Data."""

    group: ClassVar[str] = "data"

    dataset: str = setting(
        "digits",
        "digits: 8x8 images of handwritten digits. tfrecord: files at --data_path. "
        "cifar10: 32x32 photographs, downloaded unless --data_path has them. "
        "synthetic: random examples of any shape, for measuring. clicks: a generated "
        "log of categories, whose best loss is known. Also file.py:function or "
        "package.module:function, your function that returns arrays, a "
        "tf.data.Dataset or a reader.",
        choices=_DATASETS,
        why_not=_why_not,
    )
    data_path: str | None = setting(
        None,
        "TFRecord files to train on, also of gzip: files, folders of *.tfrecord and "
        "*.tfrecord.gz, or patterns such as data/part-*, separated by commas. For "
        "cifar10: a published archive, or the folder in it.",
        path="any",
    )
    sharding: str = setting(
        "exact",
        "How tfrecord is read. exact: all examples, held in memory. example: a stream, "
        "of which each process takes its rows of every global batch. file: a stream "
        "of a process's own files, which makes other global batches.",
        choices=("exact", "example", "file"),
    )
    shuffle_buffer_examples: int | None = setting(
        None,
        "Examples of a stream that are shuffled at a time, in each process. Default: "
        "10,000, or as many as have 128 MiB if these are fewer.",
        minimum=1,
        used_by={"sharding": ("example", "file")},
        has_flag=False,
    )
    eval_data_path: str | None = setting(
        None,
        "Files to evaluate on, as --data_path. Default: --set=data.eval_fraction of "
        "those.",
        path="any",
    )
    eval_fraction: float = setting(
        0.2,
        "Fraction of examples held out for evaluation.",
        above=0,
        below=1,
        used_by={"dataset": ("digits", "tfrecord", factories.PATTERN)},
        has_flag=False,
    )
    record_schema: str = setting(
        "sample:int64:5,label:int64",
        "Features of a TFRecord example as name:type:shape, the label last, such "
        "as image:float32:28x28x1,label:int64.",
        used_by={"dataset": ("tfrecord",)},
    )
    augmentation: bool = setting(
        True,
        "Crop, flip, brighten and contrast each training image of cifar10 at random: a "
        "function of --seed, the step and the image.",
        used_by={"dataset": ("cifar10",)},
        has_flag=False,
    )
    num_examples: int = setting(
        4096,
        "Training examples of synthetic and clicks; an eighth as many to evaluate.",
        minimum=8,
        used_by={"dataset": ("synthetic", "clicks")},
        has_flag=False,
    )
    input_shape: tuple[int, ...] = setting(
        (32, 32, 3),
        "Shape of one example of synthetic.",
        minimum=1,
        most_items=32,
        used_by={"dataset": ("synthetic",)},
        has_flag=False,
    )
    num_classes: int = setting(
        10,
        "Classes of synthetic, and of tfrecord if it is read as a stream.",
        minimum=2,
        maximum=1_000_000,
        used_by={"dataset": ("synthetic",), "sharding": ("example", "file")},
    )
    num_columns: int = setting(
        8,
        "Categorical columns of clicks.",
        minimum=1,
        maximum=10_000,
        used_by={"dataset": ("clicks",)},
        has_flag=False,
    )
    num_categories: int = setting(
        1_000,
        "Categories of each column of clicks; the embedding has a row for each.",
        minimum=2,
        used_by={"dataset": ("clicks",)},
        has_flag=False,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.dataset == "tfrecord" and self.data_path is None:
            raise UsageError(
                "--dataset=tfrecord needs --data_path: give a TFRecord file or a "
                "folder of them (python -m trainers.write_tfrecord makes one)."
            )
        for name, datasets in _READ_BY.items():
            path = getattr(self, name)
            if path is not None and self.dataset not in datasets:
                raise UsageError(
                    f"--{name}={path} is not read by --dataset={self.dataset}: add "
                    f"--dataset={datasets[0]}, or leave the path out."
                )
        self._check_stream()
        self._check_synthetic()
        self._check_clicks()

    @property
    def is_custom(self) -> bool:
        """True if the examples are the user's own."""
        return factories.is_factory(self.dataset)

    @property
    def is_streamed(self) -> bool:
        """True if training examples are read from files as training needs them."""
        return self.sharding != "exact"

    def _check_stream(self) -> None:
        if not self.is_streamed:
            return
        if self.dataset != "tfrecord":
            raise UsageError(
                f"--sharding={self.sharding} does not fit --dataset={self.dataset}, "
                "which is held in memory: leave it out, or add --dataset=tfrecord."
            )
        if self.eval_data_path is None:
            raise UsageError(
                f"--sharding={self.sharding} needs --eval_data_path, because no part "
                "of a stream is held out: give files to evaluate on."
            )

    def _check_synthetic(self) -> None:
        size = self.num_examples * math.prod(self.input_shape)
        if self.dataset == "synthetic" and size > _MOST_SYNTHETIC_NUMBERS:
            shape = ",".join(map(str, self.input_shape))
            raise UsageError(
                f"--set=data.num_examples={self.num_examples} of "
                f"--set=data.input_shape={shape} are {size:,} numbers to hold in "
                f"memory, more than the accepted {_MOST_SYNTHETIC_NUMBERS:,}: lower "
                "one of them."
            )

    def _check_clicks(self) -> None:
        if self.dataset != "clicks":
            return
        for name, most in _MOST_CLICKS.items():
            number = getattr(self, name)
            size = number * self.num_columns
            if size > most:
                raise UsageError(
                    f"--set=data.{name}={number} of "
                    f"--set=data.num_columns={self.num_columns} are {size:,} to hold "
                    f"in memory, more than the accepted {most:,}: lower one of them."
                )
