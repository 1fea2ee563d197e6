"""Network isolation of a cluster on this machine.

TensorFlow's servers listen on every interface regardless of their address, ask for no
password, and run any graph that they receive (TensorFlow 2.21). In a separate network
namespace the tasks reach each other, and nobody else reaches them. The namespace exists
as long as a process is in it or has it open, so that nothing remains when the launcher
is killed. This module does not import TensorFlow.
"""

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
# -I and -S skip parts of Python's start that only take time: the program imports the
# standard library alone.
_RUN_PROGRAM = (sys.executable, "-I", "-S", str(_PROGRAM))


@dataclasses.dataclass(frozen=True, slots=True)
class Network:
    """Network in which the tasks of a cluster run.

    Attributes:
      descriptors: File descriptors of the namespaces by kind, in the order of entering;
        empty for the network of this process.
    """

    descriptors: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def command(self, command: Sequence[str], *, is_admin: bool = False) -> list[str]:
        """Returns the command line that runs a command in this network.

        The process must inherit `descriptors`, as with `pass_fds` of `subprocess`.

        Args:
          command: Words of the command line.
          is_admin: True if the command changes the network.
        """
        # The entering program becomes the command by `execvp`, so that the process ID
        # and signals are the command's.
        if not self.descriptors:
            return list(command)
        namespaces = [f"{kind}={number}" for kind, number in self.descriptors.items()]
        namespaces += ["admin"] * is_admin
        return [*_RUN_PROGRAM, "enter", *namespaces, "--", *command]


@contextlib.contextmanager
def isolated_network(isolation: str, say: Callable[[str], None]) -> Iterator[Network]:
    """Yields a network for the tasks of one cluster.

    Args:
      isolation: Required isolation, one of `CHOICES`.
      say: Function that receives one warning if AUTO finds no isolated network.

    Raises:
      UsageError: This machine allows no isolated network, and it is REQUIRED.
    """
    with contextlib.ExitStack() as opened:
        # AUTO continues in the network of this process.
        network = Network()
        try:
            if isolation != OFF:
                (network,) = make_networks(1, opened)
        except OSError as error:
            if isolation == REQUIRED:
                raise UsageError(
                    "--set=strategy.isolate_network=required cannot be met, because "
                    "this machine "
                    f"allows no network namespace ({error.strerror}): use auto, where "
                    "nobody else can reach it."
                ) from error
            say(
                "other machines can reach the ports of this cluster, and whoever does "
                "can run any program here, because this machine allows no network "
                f"namespace ({error.strerror}); --set=strategy.isolate_network=off "
                "accepts that."
            )
        yield network


def make_networks(number: int, opened: contextlib.ExitStack) -> list[Network]:
    """Starts a process that makes namespaces, and opens them before it ends.

    Args:
      number: Number of networks. Nothing connects them.
      opened: Stack that closes the descriptors of the networks at its end.

    Raises:
      OSError: This machine allows no namespaces.
    """
    with subprocess.Popen(
        [*_RUN_PROGRAM, "make", str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # A Ctrl-C is for the cluster, not for this process.
        start_new_session=True,
        text=True,
    ) as maker:
        said = (maker.stdout.readline() if maker.stdout else "").strip()
        if not said.startswith(("net ", "user net ")):
            raise OSError(0, said.removeprefix("failed: ") or "no answer")

        def descriptor_of(file: str) -> int:
            # An open descriptor keeps the namespace after its only process has ended.
            descriptor = os.open(f"/proc/{maker.pid}/{file}", os.O_RDONLY)
            opened.callback(os.close, descriptor)
            return descriptor

        kinds, _, numbers = said.partition("net ")
        user = {"user": descriptor_of("ns/user")} if kinds else {}
        return [
            Network({**user, "net": descriptor_of(f"fd/{number}")})
            for number in numbers.split()
        ]
