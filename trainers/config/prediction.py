"""Settings of a prediction."""

import dataclasses
import functools
from typing import ClassVar

from strategies.common.fields import check_settings, setting
from strategies.common.text import as_argument

_DEFAULT_REPLICAS = (2, 4, 8)
_DEFAULT_BANDWIDTH_GBIT = 10.0
# The slower one of the emulated networks that predictions are fitted to.
_LEAST_BANDWIDTH_GBIT = 0.1
# Typical between two machines of a data center, through a switch and two kernels.
_DEFAULT_LATENCY_MICROSECONDS = 50.0
# Declares a setting of predictions alone.
_of_predictions = functools.partial(setting, used_by={"mode": ("predict",)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictionConfig:
    """Prediction of step times on a larger cluster."""

    group: ClassVar[str] = "prediction"

    replicas: tuple[int, ...] | None = _of_predictions(
        None,
        "Numbers of replicas for which --mode=predict predicts the step time. "
        f"Default: {as_argument(_DEFAULT_REPLICAS)}.",
        minimum=1,
        maximum=1_000_000,
    )
    bandwidth_gbit: float | None = _of_predictions(
        None,
        "Bandwidth of the network to and from each replica, in gigabits a second, "
        f"{_LEAST_BANDWIDTH_GBIT:g} or more. Default: "
        f"{_DEFAULT_BANDWIDTH_GBIT:g}.",
        minimum=_LEAST_BANDWIDTH_GBIT,
        has_flag=False,
    )
    latency_microseconds: float | None = _of_predictions(
        None,
        "Time of an empty message from one replica to another. Default: "
        f"{_DEFAULT_LATENCY_MICROSECONDS:g}.",
        minimum=0,
        has_flag=False,
    )

    repetitions: int = _of_predictions(
        1,
        "Number of times that --mode=predict makes each short run. Predictions use the "
        "median step time, which is more certain on a machine with other work.",
        minimum=1,
        maximum=100,
        has_flag=False,
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def replica_counts(self) -> tuple[int, ...]:
        """Distinct numbers of replicas, in ascending order."""
        return tuple(sorted(set(self.replicas or _DEFAULT_REPLICAS)))

    @property
    def gigabits_per_second(self) -> float:
        return self.bandwidth_gbit or _DEFAULT_BANDWIDTH_GBIT

    @property
    def seconds_per_message(self) -> float:
        given = self.latency_microseconds
        return 1e-6 * (_DEFAULT_LATENCY_MICROSECONDS if given is None else given)
