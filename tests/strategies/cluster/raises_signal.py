"""Raises the signal of a lost task twice.

python -m tests.strategies.cluster.raises_signal IS_TAKEN
"""

import signal
import sys

from strategies.cluster.failure_detection import monitor_workers
from strategies.cluster.spec import Cluster


def main(is_taken: bool) -> None:
    if is_taken:
        signal.signal(signal.SIGUSR1, lambda *_: sys.stdout.write("taken\n"))
    cluster = Cluster(job="chief", addresses={"chief": ("127.0.0.1:1",)})
    with monitor_workers(cluster, 0, print, 10, 10):
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)


if __name__ == "__main__":
    main(sys.argv[1] == "True")
