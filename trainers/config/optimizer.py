"""Settings of the optimizer and the learning rate."""

import dataclasses
import math
from typing import ClassVar

from strategies.common.errors import UsageError
from strategies.common.fields import check_settings, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Optimizer and learning rate."""

    group: ClassVar[str] = "optimizer"

    optimizer: str = setting(
        "adam",
        "Optimizer. Only sgd and adagrad without --weight_decay update just the rows "
        "of an embedding that a step uses; the others update every row.",
        choices=("sgd", "momentum", "adagrad", "adam", "adamw"),
    )
    learning_rate: float = setting(
        1e-3, "Peak learning rate, before --lr_scaling.", above=0
    )
    lr_scaling: str = setting(
        "none",
        "How the rate follows the global batch: multiplied by --global_batch_size / "
        "--base_global_batch_size (linear), or by the root of that (sqrt).",
        choices=("none", "linear", "sqrt"),
    )
    base_global_batch_size: int | None = setting(
        None,
        "The global batch that --learning_rate was chosen for.",
        minimum=1,
        used_by={"lr_scaling": ("linear", "sqrt")},
    )
    learning_rate_schedule: str = setting(
        "constant",
        "cosine falls to zero at the last step; step divides by ten at 50 and 75 "
        "percent of the steps.",
        choices=("constant", "cosine", "step"),
    )
    warmup_steps: int = setting(
        0, "Steps over which the rate rises linearly from zero.", minimum=0
    )
    momentum: float = setting(
        0.9,
        "Momentum of --optimizer=momentum.",
        minimum=0,
        below=1,
        used_by={"optimizer": ("momentum",)},
        has_flag=False,
    )
    weight_decay: float = setting(
        0.0, "Decoupled weight decay, multiplied by the learning rate.", minimum=0
    )
    clip_global_norm: float | None = setting(
        None, "Scale the summed gradient down to this norm if it is larger.", above=0
    )
    sparse_gradients: bool = setting(
        True,
        "Gradients of an embedding are the rows that a step used. Without, they are "
        "as large as the table: the same training at another cost.",
        has_flag=False,
    )
    label_smoothing: float = setting(
        0.0,
        "Share of each label spread over all classes.",
        minimum=0,
        below=1,
        has_flag=False,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.lr_scaling != "none" and self.base_global_batch_size is None:
            raise UsageError(
                f"--lr_scaling={self.lr_scaling} needs --base_global_batch_size: give "
                "the global batch that --learning_rate was chosen for."
            )

    def peak_learning_rate(self, global_batch_size: int) -> float:
        """Returns the learning rate after warm-up, scaled to a global batch.

        The linear rule is from Goyal et al., Accurate, Large Minibatch SGD, 2017, who
        combine it with warm-up. The sqrt rule keeps the variance of the summed update
        constant (Krizhevsky, One weird trick for parallelizing convolutional neural
        networks, 2014, who found that the linear rule works better).
        """
        # `__post_init__` requires the base for linear and sqrt; without a base the
        # factor is "none" and the ratio is not used.
        ratio = global_batch_size / (self.base_global_batch_size or global_batch_size)
        factors = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}
        return self.learning_rate * factors[self.lr_scaling]

    @property
    def is_constant(self) -> bool:
        """True if the learning rate is the same at every step."""
        return self.learning_rate_schedule == "constant" and not self.warmup_steps

    @property
    def updates_rows(self) -> bool:
        """True if an update leaves embedding rows without a gradient unchanged."""
        # Momentum, Adam and weight decay change every row at every step: their moving
        # averages and the decay act on rows with a zero gradient as well.
        return self.optimizer in ("sgd", "adagrad") and not self.weight_decay
