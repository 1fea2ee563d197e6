"""Settings of models."""

import dataclasses
import pathlib
from typing import ClassVar

import models
from models import factories
from strategies.common.errors import UsageError
from strategies.common.fields import check_settings, setting
from strategies.common.text import as_argument, shown

DTYPES = ("float32", "float64", "mixed_bfloat16", "mixed_float16")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Model."""

    group: ClassVar[str] = "model"

    model: str = setting(
        "convnet",
        "Model to train. Also keras:NAME, any classifier of keras.applications, with "
        "new weights, such as keras:ResNet50. Also file.py:function or "
        "package.module:function, your function that returns a Keras model.",
        choices=models.names,
        why_not=models.why_not,
    )
    script: str | None = setting(
        None,
        "A Keras program, such as train.py, to run as it is: its call of Model.fit "
        "trains under --strategy. Arguments for it follow after --.",
        path="file",
    )
    script_arguments: tuple[str, ...] | None = setting(
        None, "Arguments of --script: what follows after --.", has_flag=False
    )
    keras_fit: bool = setting(
        False,
        "Train the program of --script by Keras's own fit, on one device: the first "
        "arm of --mode=verify and --mode=compare.",
        has_flag=False,
    )
    initial_weights: str | None = setting(
        None,
        "A .keras or .weights.h5 file of Keras to take the initial weights from; its "
        "layers must be those of --model.",
        path="file",
    )
    perturb_initial_weights: bool = setting(
        False,
        "Change the last bit of every initial weight, up or down, to measure how the "
        "training amplifies rounding.",
        has_flag=False,
    )
    loss: str | None = setting(
        None,
        "Keras's name of the loss of a model of your own. Default: what it was "
        "compiled with.",
    )
    metrics: tuple[str, ...] | None = setting(
        None,
        "Keras's names of the metrics of a model of your own. Default: those it was "
        "compiled with.",
    )
    callbacks: str | None = setting(
        None,
        "package.module:function or file.py:function that returns a list of Keras "
        "callbacks, which run on the chief. The model is evaluated once an epoch then.",
    )
    hidden_units: tuple[int, ...] = setting(
        (128, 64),
        "Width of each hidden layer of mlp and wide_embedding.",
        minimum=1,
        maximum=1_000_000,
        used_by={"model": models.using("hidden_units")},
    )
    embedding_dimension: int = setting(
        16,
        "Numbers that stand for one category in wide_embedding.",
        minimum=1,
        maximum=1_000_000,
        used_by={"model": models.using("embedding_dimension")},
        has_flag=False,
    )
    embedding_shards: int = setting(
        2,
        "Variables over which wide_embedding spreads its rows: give as many as "
        "parameter servers. Does not change the training.",
        minimum=1,
        maximum=1_000,
        used_by={"model": models.using("embedding_shards")},
        has_flag=False,
    )
    dropout: float = setting(
        0.0,
        "Fraction of activations dropped in training.",
        minimum=0,
        below=1,
        used_by={"model": models.using("dropout")},
    )
    disable_layers: tuple[str, ...] | None = setting(
        None,
        "Kinds of layers to call as in inference during training, to see their effect. "
        "Also those of a model of your own.",
        choices=("dropout", "batch_normalization"),
        has_flag=False,
    )
    replayable_random_numbers: bool = setting(
        False,
        "Make the random numbers of an example, as in dropout, a function of --seed, "
        "the step and the example: the same training with any number of replicas.",
        has_flag=False,
    )
    jit_compile: str = setting(
        "auto",
        "Compilation by XLA. auto: the loop of one_device on CPUs, if the model "
        "consists of dense layers, attention and small embeddings. on: that loop if "
        "possible, else each replica's computation, once for each number of rows.",
        choices=("auto", "on", "off"),
    )
    dtype: str = setting(
        "float32",
        "Precision. The mixed ones compute in 16 bits, with float32 weights; "
        "mixed_float16 scales the loss. A model of your own may set another policy.",
        choices=DTYPES,
    )

    ballast: bool = setting(
        False,
        "Add weights that compute nothing, of as many bytes as the model's and at "
        "least 1 MiB, to measure the cost of sending and applying their gradients. "
        "--mode=predict does so in some of its runs.",
        has_flag=False,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.callbacks is not None and not factories.is_factory(self.callbacks):
            raise UsageError(
                f"--callbacks={shown(self.callbacks)} names no function: give "
                f"{factories.FORM}."
            )
        # Built-in models bring their own loss and metrics.
        for name in ("loss", "metrics"):
            value = getattr(self, name)
            if value is not None and not self.is_custom:
                raise UsageError(
                    f"--{name}={as_argument(value)} is for a model of your own, and "
                    f"--model={self.model} has its own: leave it out."
                )

    @property
    def is_custom(self) -> bool:
        """True if the user supplies the model, by a factory or in a program."""
        return self.script is not None or factories.is_factory(self.model)

    @property
    def name(self) -> str:
        """Name of the model for people: the program's, if it is in one."""
        return self.model if self.script is None else pathlib.Path(self.script).name
