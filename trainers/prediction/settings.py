"""The settings of a prediction. Nothing here imports TensorFlow."""

from __future__ import annotations

import dataclasses

from strategies.settings import UsageError, as_argument, check_settings, setting

_DEFAULT_REPLICAS = (2, 8, 64, 512)
_DEFAULT_BANDWIDTH_GBIT = 10.0
# Between two machines of a data center, by way of a switch and two kernels.
_DEFAULT_LATENCY_MICROSECONDS = 50.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictionConfig:
    """Prediction of step times on a larger cluster."""

    replicas: tuple[int, ...] | None = setting(
        None,
        "How many replicas --mode=predict tells the step time of, several numbers. "
        f"Default: {as_argument(_DEFAULT_REPLICAS)}.",
        minimum=1,
        maximum=1_000_000,
    )
    bandwidth_gbit: float | None = setting(
        None,
        "What the network between replicas carries to and from each of them, in "
        f"gigabits a second. Default: {_DEFAULT_BANDWIDTH_GBIT:g}.",
        above=0,
    )
    latency_microseconds: float | None = setting(
        None,
        "How long an empty message takes from one replica to another. Default: "
        f"{_DEFAULT_LATENCY_MICROSECONDS:g}.",
        minimum=0,
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def check_mode(self, mode: str) -> None:
        """Raises UsageError if there is a setting that the mode does not use."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and mode != "predict":
                raise UsageError(
                    f"--{field.name}={as_argument(value)} is not used by --mode={mode}"
                    f"{_MEANT.get(field.name, '')}: add --mode=predict, or leave it "
                    "out."
                )

    @property
    def replica_counts(self) -> tuple[int, ...]:
        """In ascending order, each once."""
        return tuple(sorted(set(self.replicas or _DEFAULT_REPLICAS)))

    @property
    def seconds_per_byte(self) -> float:
        return 8 / (1e9 * (self.bandwidth_gbit or _DEFAULT_BANDWIDTH_GBIT))

    @property
    def seconds_per_message(self) -> float:
        given = self.latency_microseconds
        return 1e-6 * (_DEFAULT_LATENCY_MICROSECONDS if given is None else given)


_MEANT = {"replicas": ", which takes --num_replicas"}
