"""Keeps a cluster that is started on this machine out of reach from outside.

TensorFlow's servers listen on every interface whatever address they are given, ask for
no password, and run any graph that they are sent (TensorFlow 2.21). In a network
namespace of their own the tasks reach each other, and nobody reaches them. It lasts as
long as a process is in it or has it open, so that nothing is left when the launcher is
killed. Nothing here imports TensorFlow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from strategies.common.errors import UsageError

AUTO, REQUIRED, OFF = CHOICES = ("auto", "required", "off")

_PROGRAM = pathlib.Path(__file__).with_name("_enter_namespace.py")
# -I and -S leave out what only takes time: the program imports nothing of ours.
_RUN_PROGRAM = (sys.executable, "-I", "-S", str(_PROGRAM))


@dataclasses.dataclass(frozen=True, slots=True)
class Network:
    """Where the tasks of a cluster are to run.

    Attributes:
      descriptors: of the namespaces to enter, by kind, in the order of entering; none
        for the network that this process is in.
    """

    descriptors: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def command(self, command: Sequence[str]) -> list[str]:
        """The same command there; its process is the one that is started.

        The process must be given `descriptors`, as `subprocess` does with `pass_fds`.
        """
        if not self.descriptors:
            return list(command)
        namespaces = [f"{kind}={number}" for kind, number in self.descriptors.items()]
        return [*_RUN_PROGRAM, "enter", *namespaces, "--", *command]


@contextlib.contextmanager
def network_of_its_own(confine: str, say: Callable[[str], None]) -> Iterator[Network]:
    """A network for the tasks of one cluster.

    Args:
      confine: one of `CHOICES`.
      say: told in one line if there is none, with AUTO.

    Raises:
      UsageError: this machine allows none, with REQUIRED.
    """
    with contextlib.ExitStack() as opened:
        try:
            network = Network() if confine == OFF else _make(opened)
        except OSError as error:
            network = Network()
            if confine == REQUIRED:
                raise UsageError(
                    "--confine_cluster=required cannot be met, because this machine "
                    f"allows no network namespace ({error.strerror}): use auto, where "
                    "nobody else can reach it."
                ) from error
            say(
                "other machines can reach the ports of this cluster, and whoever does "
                "can run any program here, because this machine allows no network "
                f"namespace ({error.strerror}); --confine_cluster=off accepts that."
            )
        yield network


def _make(opened: contextlib.ExitStack) -> Network:
    """Opens the namespaces of a process that makes them and is gone afterwards.

    Raises:
      OSError: there are none.
    """
    if not sys.platform.startswith("linux"):
        raise OSError(0, "only Linux has them")
    with subprocess.Popen(
        [*_RUN_PROGRAM, "make"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # Ctrl-C is for the cluster, not for this.
        start_new_session=True,
        text=True,
    ) as maker:
        said = (maker.stdout.readline() if maker.stdout else "").strip()
        if said not in ("net", "user net"):
            raise OSError(0, said.removeprefix("failed: ") or "no answer")
        descriptors = {}
        for kind in said.split():
            descriptor = os.open(f"/proc/{maker.pid}/ns/{kind}", os.O_RDONLY)
            opened.callback(os.close, descriptor)
            descriptors[kind] = descriptor
    return Network(descriptors)
