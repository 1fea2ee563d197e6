"""Checks that a silent task counts as missing until it answers."""

import errno
import subprocess
import sys
import time

import pytest

from strategies.cluster import peer_silence
from strategies.cluster.probes import PeerState
from tests.cluster.separate_hosts import reason_for_none, separate_hosts
from tests.processes import PATIENCE_SECONDS, ROOT

LOOK = """
import sys, time
from strategies.cluster.probes import peer_state

deadline = time.monotonic() + float(sys.argv[2])
found = {peer_state(sys.argv[1]).name}
while time.monotonic() < deadline:
    found.add(peer_state(sys.argv[1]).name)
print(*sorted(found))
"""


@pytest.mark.skipif(bool(reason_for_none()), reason=reason_for_none())
def test_a_host_that_is_cut_off_is_silent() -> None:
    """The kernel reports no route after 3 s, which is no answer of the host."""
    with separate_hosts(2) as hosts:

        def seen_from(*from_hosts: int, seconds: float = 0) -> list[str]:
            """Returns what each of the hosts sees of the other at the same time."""
            looks = [
                subprocess.Popen(
                    [
                        *(*hosts.before(host), sys.executable, "-c", LOOK),
                        *(f"{hosts.address(1 - host)}:2222", str(seconds)),
                    ],
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for host in from_hosts
            ]
            return [look.communicate()[0].strip() for look in looks]

        assert seen_from(0) == ["DEAD"]
        hosts.cut_off(1)
        assert seen_from(0, 1, seconds=6) == ["SILENT", "SILENT"]
        hosts.connect(1)
        # The kernel may take a second or more to use the cable again.
        deadline = time.monotonic() + PATIENCE_SECONDS
        while seen_from(0) != ["DEAD"]:
            assert time.monotonic() < deadline


def test_one_that_was_missing_is_so_until_it_talks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there, gone, silent = PeerState.SERVING, PeerState.DEAD, PeerState.SILENT
    seconds, disconnected = [0.0], list[str]()
    monkeypatch.setattr(
        "strategies.cluster.peer_silence.time.monotonic", lambda: seconds[0]
    )
    monkeypatch.setattr(peer_silence, "disconnect", disconnected.append)
    tasks = peer_silence.PeerStates({"worker-0": "host:1"}, patience_seconds=3)

    def look(present: PeerState) -> str | None:
        monkeypatch.setattr(peer_silence, "peer_state", lambda address: present)
        seconds[0] += 1
        return tasks.probe().get("worker-0")

    # It is silent for as long as others wait for it, and then for longer.
    assert [look(p) for p in (silent, silent, silent)] == [None] * 3
    assert look(silent) == "does not answer"
    assert disconnected == ["host:1"]
    assert look(there) is None
    # The task is killed; its machine goes off, comes back, and starts the task again.
    found = [look(p) for p in (gone, silent, silent, silent, silent, gone, silent)]
    assert found == ["was lost"] * 7
    assert look(there) is None


@pytest.mark.parametrize("place", ["limit_silence", "for_each"])
def test_a_shortage_of_this_process_is_no_sign_of_others(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    tasks = peer_silence.PeerStates({"worker-0": "127.0.0.1:1"}, patience_seconds=0)
    with monkeypatch.context() as patched:
        patched.setattr(peer_silence, place, fail)
        assert tasks.probe() == {}
    assert tasks.probe() == {"worker-0": "was lost"}
