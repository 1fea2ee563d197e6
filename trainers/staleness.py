"""How old the weights were that gradients were computed on."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from trainers.loop import StepReport


class Staleness:
    """Updates by the number of others applied since their weights were read. A hook."""

    def __init__(self) -> None:
        self._all: Counter[int] = Counter()
        self._by_worker: dict[str, Counter[int]] = {}

    def __call__(self, report: StepReport) -> None:
        results = report.results
        if results.staleness is None:
            return
        updates = results.staleness.astype(int)
        self._all.update(updates.tolist())
        if results.workers is not None:
            for worker in np.unique(results.workers):
                counts = self._by_worker.setdefault(str(worker), Counter())
                counts.update(updates[results.workers == worker].tolist())

    def reset(self) -> None:
        """Begins a new stretch."""
        self._all.clear()
        self._by_worker.clear()

    def summary(self) -> dict[str, Any] | None:
        """Over all updates, and by worker; None if there was nothing to measure."""
        if not self._all:
            return None
        by_worker = {
            worker: _distribution(counts)
            for worker, counts in sorted(self._by_worker.items())
        }
        return {**_distribution(self._all), "by_worker": by_worker or None}

    def scalars(self) -> dict[str, float]:
        """By tag, for TensorBoard: over all updates, and by worker."""
        counts = {"": self._all, **{f"/{w}": c for w, c in self._by_worker.items()}}
        return {
            f"staleness{suffix}/{figure}": float(_distribution(updates)[figure])
            for suffix, updates in counts.items()
            if updates
            for figure in ("mean", "p50", "p95", "max")
        }

    def histogram(self) -> np.ndarray | None:
        """[n, 3]: left edge, right edge and count, one bucket for each number."""
        rows = [(k - 0.5, k + 0.5, self._all[k]) for k in sorted(self._all)]
        return np.array(rows, np.float64) if rows else None


def _distribution(counts: Counter[int]) -> dict[str, Any]:
    values = np.repeat(list(counts), list(counts.values()))
    return {
        "mean": float(values.mean()),
        "p50": float(np.percentile(values, 50)),
        "p95": float(np.percentile(values, 95)),
        "max": int(values.max()),
        "histogram": {str(k): counts[k] for k in sorted(counts)},
    }
