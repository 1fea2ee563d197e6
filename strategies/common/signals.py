"""Stop signals, and the signals by which a launcher forwards them.

A scheduler that ends a job may send SIGTERM to all its processes, as systemd does, and
the launcher forwards the SIGTERM that it receives itself. A task that took this for a
second request to stop would end without its checkpoint. So the launcher forwards
requests by separate signals, and tasks ignore repetitions of them.
"""

import signal

STOPS = (signal.SIGINT, signal.SIGTERM)


def requests_to_stop() -> tuple[int, ...]:
    """Returns the signals of `STOPS` that this process heeds.

    A script starts background programs with SIGINT ignored (POSIX, Shell
    Command Language, 2.11): Ctrl-C is meant for another program then, and a handler
    would take it. SIGTERM comes from a scheduler that kills soon afterwards, and is
    heeded in any case.
    """
    ignores_interrupts = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return (signal.SIGTERM,) if ignores_interrupts else STOPS


def learn_ends_of_children() -> None:
    """Lets this process learn how each of its children ends.

    A parent may have started it with SIGCHLD ignored. The kernel then discards the exit
    codes of its children (man 2 waitpid, NOTES), and a failed task would count as done.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


# Real-time signals, which only Linux has and nobody else uses here. Like the signals
# that they stand for, they end a process without a handler.
PASSED_ON: dict[int, int] = {
    number: signal.SIGRTMIN + 1 + position for position, number in enumerate(STOPS)
}
_ORIGINAL = {passed_on: number for number, passed_on in PASSED_ON.items()}


def name_of(number: int) -> str:
    """Returns the name of a signal, such as SIGKILL."""
    # Python has no names for real-time signals but the first and the last.
    names = {known.value: known.name for known in signal.Signals}
    return names.get(number, f"signal {number}")


def as_passed_on(number: int) -> int:
    """Returns the signal by which the launcher forwards a signal to its tasks."""
    return PASSED_ON.get(number, number)


def original(number: int) -> int:
    """Returns the original of a forwarded signal, or the signal itself."""
    return _ORIGINAL.get(number, number)
