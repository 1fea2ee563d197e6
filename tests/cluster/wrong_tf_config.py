"""Wrong values of TF_CONFIG, by the fault in them."""

import copy
from typing import Any

GOOD: dict[str, Any] = {
    "cluster": {
        "chief": ["host:1"],
        "worker": ["host:2", "other.example.org:2222", "[::1]:65535"],
        "ps": ["10.0.0.1:4"],
    },
    "task": {"type": "worker", "index": 2},
}


def changed(**settings: Any) -> dict[str, Any]:
    """Returns GOOD with values replaced by their path, such as task__index=1."""
    value = copy.deepcopy(GOOD)
    for path, new in settings.items():
        *parents, name = path.split("__")
        place = value
        for parent in parents:
            place = place[parent]
        place[name] = new
    return value


def without(*path: str) -> dict[str, Any]:
    value = copy.deepcopy(GOOD)
    place = value
    for name in path[:-1]:
        place = place[name]
    del place[path[-1]]
    return value


WRONG: dict[str, tuple[Any, str]] = {
    "not JSON": ("{", "TF_CONFIG is not JSON"),
    "a bare word": ("worker", "TF_CONFIG is not JSON"),
    "a list": ([], "TF_CONFIG is []"),
    "a number": (3, "TF_CONFIG is 3"),
    "null": (None, "TF_CONFIG is null"),
    "empty": ({}, "key cluster is missing"),
    "no task": (without("task"), "key task is missing"),
    "no cluster": (without("cluster"), "key cluster is missing"),
    "unknown key": (changed(tasks={}), "key tasks is not known"),
    "cluster is a list": (changed(cluster=["h:1"]), 'key cluster is ["h:1"]'),
    "cluster is empty": (changed(cluster={}), "key cluster names no task"),
    "unknown job": (
        changed(cluster__master=["h:1"]),
        "key cluster.master is not known",
    ),
    "job is a word": (changed(cluster__worker="h:1"), 'key cluster.worker is "h:1"'),
    "job is empty": (changed(cluster__worker=[]), "key cluster.worker is []"),
    "two chiefs": (
        changed(cluster__chief=["h:1", "h:9"]),
        "key cluster.chief lists 2 tasks",
    ),
    "address is a number": (changed(cluster__ps=[2222]), "key cluster.ps[0] is 2222"),
    "address is null": (changed(cluster__ps=[None]), "key cluster.ps[0] is null"),
    "no port": (changed(cluster__ps=["host"]), "key cluster.ps[0] is 'host'"),
    "no host": (changed(cluster__ps=[":1"]), "key cluster.ps[0] is ':1'"),
    "empty address": (changed(cluster__ps=[""]), "key cluster.ps[0] is ''"),
    "a scheme": (changed(cluster__ps=["grpc://h:1"]), "is 'grpc://h:1'"),
    "port 0": (changed(cluster__ps=["h:0"]), "key cluster.ps[0] has port '0'"),
    "port 99999": (changed(cluster__ps=["h:99999"]), "has port '99999'"),
    "port -1": (changed(cluster__ps=["h:-1"]), "has port '-1'"),
    "port is a word": (changed(cluster__ps=["h:x"]), "has port 'x'"),
    "duplicate in a job": (
        changed(cluster__worker=["h:1", "h:1", "h:2"]),
        "key cluster.worker[1] is 'h:1', and so is cluster.worker[0]",
    ),
    "duplicate over jobs": (
        changed(cluster__ps=["host:1"]),
        "and so is cluster.chief[0]",
    ),
    "one address spelt two ways": (
        changed(cluster__worker=["127.0.0.1:24601", "localhost:24601", "h:3"]),
        "key cluster.worker[1] is 'localhost:24601', and so is cluster.worker[0] "
        "(127.0.0.1:24601)",
    ),
    "loopback spelt two ways": (
        changed(cluster__worker=["127.0.0.1:9", "127.0.0.2:9", "h:3"]),
        "and so is cluster.worker[0]",
    ),
    "loopback of IPv6": (
        changed(cluster__worker=["localhost:9", "[::1]:9", "h:3"]),
        "key cluster.worker[1] is '[::1]:9', and so is cluster.worker[0]",
    ),
    "one host in capitals": (changed(cluster__ps=["HOST:1"]), "and so is"),
    "one host with a dot": (changed(cluster__ps=["host.:1"]), "and so is"),
    "one port with a zero": (changed(cluster__ps=["host:01"]), "and so is"),
    "numbers of one host": (
        changed(cluster__worker=["10.1:7", "10.0.0.1:7", "h:1"]),
        "and so is cluster.worker[0] (10.1:7)",
    ),
    "a key twice": (
        '{"cluster": {"worker": ["h:1"]}, "cluster": {"worker": ["h:1", "h:2"]}, '
        '"task": {"type": "worker", "index": 0}}',
        "TF_CONFIG is not JSON ('cluster' is there twice)",
    ),
    "a job twice": (
        '{"cluster": {"worker": ["h:1"], "worker": ["h:2"]}, '
        '"task": {"type": "worker", "index": 0}}',
        "TF_CONFIG is not JSON ('worker' is there twice)",
    ),
    "nested too deeply": ("[" * 50_000, "TF_CONFIG is not JSON"),
    "a long key": (changed(cluster={"x" * 50_000: []}), "key cluster.xxx"),
    "a long address": (changed(cluster__ps=["x" * 50_000]), "key cluster.ps[0] is 'xx"),
    "task is a list": (changed(task=["worker", 0]), "key task is"),
    "no type": (without("task", "type"), "key task.type is missing"),
    "no index": (without("task", "index"), "key task.index is missing"),
    "unknown type": (changed(task__type="evaluator"), 'key task.type is "evaluator"'),
    "type is a number": (changed(task__type=1), "key task.type is 1"),
    "index is a word": (changed(task__index="0"), 'key task.index is "0"'),
    "index is a fraction": (changed(task__index=0.0), "key task.index is 0.0"),
    "index is a boolean": (changed(task__index=True), "key task.index is true"),
    "index is negative": (changed(task__index=-1), "key task.index is -1"),
    "index too large": (changed(task__index=3), "key task.index is 3"),
    "another protocol": (changed(rpc_layer="http"), 'key rpc_layer is "http"'),
}
