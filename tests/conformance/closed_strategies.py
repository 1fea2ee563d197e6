"""Program that prints the threads and processes that each strategy leaves."""

import threading

import psutil

from tests.conformance.harness import LAYOUTS, Subject, in_one_process, small_config


def main() -> None:
    for strategy in in_one_process():
        subject = Subject.of(small_config(strategy=strategy, model="mlp"))
        subject.run(LAYOUTS["even"])
        subject.assembly.strategy.close()
        threads = {*threading.enumerate()} - {threading.main_thread()}
        names = [thread.name for thread in threads]
        print(strategy, "left:", names, psutil.Process().children())  # noqa: T201


if __name__ == "__main__":
    main()
