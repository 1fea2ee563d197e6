"""Tasks of a cluster, and the task of this process."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from strategies.cluster.security import canonical_address
from strategies.common.errors import UsageError
from strategies.common.strict_json import parse_json
from strategies.common.text import as_json, shown

EVALUATOR = "evaluator"
JOBS = ("chief", "worker", "ps", EVALUATOR)
_SINGLE_JOBS = ("chief", EVALUATOR)
_EXAMPLE = (
    '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
    '"task": {"type": "worker", "index": 0}}'
)
_TOP_LEVEL_KEYS = ("cluster", "task", "rpc_layer", "environment")
_TASK_KEYS = ("type", "index", "trial", "cloud")
# A name, an IPv4 address, or an IPv6 address in brackets.
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Tasks of a cluster, and the one task that is this process.

    Attributes:
      job: Job of this process, one of `JOBS`.
      index: Index of this process in its job.
      addresses: Address (host:port) of every task by job; empty for a single process.
    """

    job: str = "chief"
    index: int = 0
    addresses: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def task(self) -> str:
        """Name of this process in logs and results, such as `worker-1`."""
        return f"{self.job}-{self.index}"

    @property
    def is_chief(self) -> bool:
        """True if this process writes summaries, checkpoints and the result."""
        # Without a job called chief, the first worker is the chief, as in TensorFlow's
        # TFConfigClusterResolver.
        if "chief" in self.addresses or not self.addresses:
            return self.job == "chief"
        return self.job == "worker" and self.index == 0

    @property
    def computing(self) -> tuple[str, ...]:
        """Addresses of the tasks that hold replicas: a chief counts as a worker."""
        return (*self.addresses.get("chief", ()), *self.addresses.get("worker", ()))

    @property
    def rank(self) -> int:
        """Position of this task in `computing`."""
        return self.computing.index(self.address)

    @property
    def address(self) -> str:
        """Address of this process, host:port."""
        return self.addresses[self.job][self.index]

    @property
    def digest(self) -> str:
        """Eight characters for the chief's address, which one cluster has at a time."""
        chief = canonical_address(self.computing[0]).encode()
        return hashlib.blake2b(chief, digest_size=4).hexdigest()

    def tasks(self, *jobs: str) -> Mapping[str, str]:
        """Returns the address (host:port) of every task, or of some jobs', by name."""
        return {
            f"{job}-{index}": address
            for job, addresses in self.addresses.items()
            for index, address in enumerate(addresses)
            if job in (jobs or self.addresses)
        }

    def members(self) -> Mapping[str, str]:
        """Returns the address (host:port) of the tasks that train together, by name."""
        # An evaluator only reads what the other tasks write, and no task waits for it.
        return self.tasks(*(job for job in JOBS if job != EVALUATOR))

    def hosts(self) -> Mapping[str, str]:
        """Returns the host of every task by its key in TF_CONFIG."""
        return {
            f"TF_CONFIG key cluster.{job}[{index}]": address.rpartition(":")[0]
            for job, addresses in self.addresses.items()
            for index, address in enumerate(addresses)
        }

    def peers(self) -> Mapping[str, str]:
        """Returns the address of each member other than this task, by name."""
        return {t: a for t, a in self.members().items() if t != self.task}

    def tf_config(self) -> str:
        """Returns the value of TF_CONFIG that makes a process this task."""
        return json.dumps(
            {
                "cluster": {job: list(found) for job, found in self.addresses.items()},
                "task": {"type": self.job, "index": self.index},
            }
        )


def from_environment(environment: Mapping[str, str]) -> Cluster | None:
    """Returns the task of this process in TF_CONFIG, or None without TF_CONFIG.

    TF_CONFIG takes precedence over Slurm's variables, which `strategies.cluster.slurm`
    reads.
    """
    text = environment.get("TF_CONFIG", "")
    if text.strip():
        return parse_tf_config(text)
    return None


def check_roles(
    cluster: Cluster, required: Sequence[str], allowed: Sequence[str]
) -> None:
    """Raises UsageError, which names the job, if one is missing or not accepted."""
    for job in required:
        if job not in cluster.addresses:
            raise _refusal(f"cluster.{job}", "is missing, which this strategy needs")
    for job in cluster.addresses:
        if job not in (*required, *allowed):
            accepted = ", ".join((*required, *allowed))
            raise _refusal(
                f"cluster.{job}", f"has no place in this strategy, which has {accepted}"
            )


def parse_tf_config(text: str) -> Cluster:
    """Reads and checks a TF_CONFIG before TensorFlow uses it.

    TensorFlow 2.21 answers most malformed values with tracebacks, accepts some, and
    hangs on a duplicate address.

    Raises:
      UsageError: A key is wrong. The message names the key.
    """
    try:
        value = parse_json(text)
    except ValueError as error:
        raise _refusal("", f"is not JSON ({' '.join(str(error).split())})") from error
    _check_keys("", value, required=("cluster", "task"), allowed=_TOP_LEVEL_KEYS)
    if value.get("rpc_layer", "grpc") != "grpc":
        raise _refusal("rpc_layer", f"is {_shown(value['rpc_layer'])}; leave it out")
    addresses = _parse_addresses(value["cluster"])
    job, index = _parse_task(value["task"], addresses)
    return Cluster(job=job, index=index, addresses=addresses)


def _parse_addresses(value: Any) -> dict[str, tuple[str, ...]]:
    _check_keys("cluster", value, required=(), allowed=JOBS)
    if not value:
        raise _refusal("cluster", "names no task")
    seen: dict[str, tuple[str, str]] = {}
    addresses = {}
    for job, tasks in value.items():
        key = f"cluster.{job}"
        if not isinstance(tasks, list) or not tasks:
            raise _refusal(key, f"is {_shown(tasks)}; it takes a list of host:port")
        if job in _SINGLE_JOBS and len(tasks) > 1:
            raise _refusal(key, f"lists {len(tasks)} tasks; there can be one")
        for index, address in enumerate(tasks):
            place = f"{key}[{index}]"
            _check_address(place, address)
            socket = canonical_address(address)
            if socket in seen:
                other, spelling = seen[socket]
                also = f" ({spelling})" if spelling != address else ""
                raise _refusal(place, f"is '{shown(address)}', and so is {other}{also}")
            seen[socket] = (place, address)
        addresses[job] = tuple(tasks)
    return addresses


def _check_address(key: str, address: Any) -> None:
    if not isinstance(address, str):
        raise _refusal(key, f"is {_shown(address)}; it takes 'host:port'")
    # From the right, because an IPv6 address contains colons, too.
    host, separator, port = address.rpartition(":")
    if not separator or not _HOST.fullmatch(host):
        raise _refusal(key, f"is '{shown(address)}'; it takes 'host:port'")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise _refusal(key, f"has port '{shown(port)}'; ports go from 1 to 65535")


def _parse_task(value: Any, addresses: Mapping[str, Sequence[str]]) -> tuple[str, int]:
    _check_keys("task", value, required=("type", "index"), allowed=_TASK_KEYS)
    job, index = value["type"], value["index"]
    if not isinstance(job, str) or job not in addresses:
        raise _refusal(
            "task.type", f"is {_shown(job)}; cluster has {', '.join(addresses)}"
        )
    # Not isinstance: bool is a subclass of int, but true is no index.
    if type(index) is not int:
        raise _refusal("task.index", f"is {_shown(index)}; it takes a whole number")
    if not 0 <= index < len(addresses[job]):
        last = len(addresses[job]) - 1
        raise _refusal("task.index", f"is {index}; cluster.{job} has 0 to {last}")
    return job, index


def _check_keys(
    key: str, value: Any, required: Sequence[str], allowed: Sequence[str]
) -> None:
    if not isinstance(value, dict):
        raise _refusal(key, f"is {_shown(value)}; it takes an object")
    for name in required:
        if name not in value:
            raise _refusal(f"{key}.{name}".lstrip("."), "is missing")
    for name in value:
        if name not in allowed:
            raise _refusal(
                f"{key}.{shown(name)}".lstrip("."),
                f"is not known; accepted are {', '.join(allowed)}",
            )


def _shown(value: Any) -> str:
    text = as_json(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _refusal(key: str, problem: str) -> UsageError:
    subject = f"TF_CONFIG key {key}" if key else "TF_CONFIG"
    return UsageError(f"{subject} {problem}. An accepted value: {_EXAMPLE}")
