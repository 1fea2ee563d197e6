"""Settings that handle divergence and stalls."""

import dataclasses
from typing import ClassVar

from strategies.common.fields import check_settings, setting

_DEFAULT_MAX_ROLLBACKS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """Reaction to training that goes wrong."""

    group: ClassVar[str] = "guard"

    on_divergence: str = setting(
        "stop",
        "What to do if a loss, gradient or weight is not finite: stop with exit code "
        "3, or rollback to the checkpoint before, with half the learning rate. "
        "rollback begins with a checkpoint of step 0.",
        choices=("stop", "rollback"),
    )
    # None instead of the number itself distinguishes an absent flag, so that the flag
    # can be rejected where it has no effect.
    max_rollbacks: int | None = setting(
        None,
        "Rollbacks before the run stops with exit code 3. Default: "
        f"{_DEFAULT_MAX_ROLLBACKS}.",
        minimum=1,
        maximum=1_000_000,
        used_by={"on_divergence": ("rollback",)},
        has_flag=False,
    )
    stall_timeout_seconds: float | None = setting(
        600.0,
        "End with stack traces and exit code 138 after this long without a finished "
        "step, evaluation or checkpoint. none: never.",
        above=0,
        has_flag=False,
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def rolls_back(self) -> bool:
        return self.on_divergence == "rollback"

    @property
    def most_rollbacks(self) -> int:
        """Maximum number of rollbacks of a run; 0 without rollback."""
        return (self.max_rollbacks or _DEFAULT_MAX_ROLLBACKS) if self.rolls_back else 0
