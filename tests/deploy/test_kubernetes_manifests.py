"""Tests of deploy/kubernetes's manifests, and of the commands of their pods."""

import copy
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubeflow.training import models as kubeflow_models
from kubernetes.client import models as kubernetes_models

from strategies.cluster.spec import Cluster, parse_tf_config
from strategies.common.errors import ExitCode
from tests import processes
from tests.cluster.separate_hosts import Hosts, reason_for_none, separate_hosts
from tests.processes import ROOT, result_of
from trainers.cli.flags import parse

FOLDER = ROOT / "deploy" / "kubernetes"
# Versions from 1.31 on, in which podFailurePolicy is stable.
VERSIONS = ("1.31", "1.34", "1.37")
# Exit codes after which another try would end in the same way.
FINAL = {ExitCode.BUG, ExitCode.USAGE, ExitCode.DIVERGED, ExitCode.DIFFERENT}
PORT = 2222


def documents(name: str) -> list[dict[str, Any]]:
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    return [document for document in yaml.safe_load_all(text) if document]


def document(name: str, kind: str) -> dict[str, Any]:
    (found,) = (each for each in documents(name) if each["kind"] == kind)
    return found


def check_as_kubernetes(manifest: Mapping[str, Any], version: str) -> None:
    """Raises an error if the published schema of Kubernetes refuses a manifest."""
    kubernetes_validate.validate(manifest, version, strict=True)


def check_as_kubeflow(value: Any, kind: str, where: str = "") -> None:
    """Checks a value against the models that Kubeflow makes from its OpenAPI schema.

    Args:
      value: Value from the manifest.
      kind: Type of the value in Kubeflow, such as dict(str, KubeflowOrgV1ReplicaSpec).
      where: Name of the value for messages.

    Raises:
      ValueError: The value has a field that is not in the schema, or lacks a required
        one.
      TypeError: The value has another type.
    """
    if kind.startswith(("dict(", "list[")):
        expected, inner = {"d": dict, "l": list}[kind[0]], kind[5:-1].split(", ")[-1]
        if not isinstance(value, expected):
            raise TypeError(f"{where} is no {kind}")
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in items:
            check_as_kubeflow(each, inner, f"{where}.{key}")
        return
    simple = {"str": str, "int": int, "bool": bool, "object": object}.get(kind)
    if simple is not None:
        if not isinstance(value, simple):
            raise TypeError(f"{where} is {value!r}, and should be of type {kind}")
        return
    model = getattr(kubeflow_models, kind, None) or getattr(kubernetes_models, kind)
    by_key = {key: name for name, key in model.attribute_map.items()}
    unknown = set(value) - set(by_key)
    if unknown:
        raise ValueError(f"{where} has {unknown}, and {kind} has {set(by_key)}")
    # The model raises an error where a required field is missing.
    model(**{by_key[key]: each for key, each in value.items()})
    for key, each in value.items():
        check_as_kubeflow(each, model.openapi_types[by_key[key]], f"{where}.{key}")


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_allows_the_manifests(version: str) -> None:
    kinds = []
    for manifest in documents("multi_worker"):
        check_as_kubernetes(manifest, version)
        kinds.append(manifest["kind"])
    assert kinds == ["Service", "NetworkPolicy", "Job"]


# Paths of fields, and values for them that a schema must refuse.
WRONG = {
    "a misspelt rule": ("spec.podFailurePolicys", {"rules": []}),
    "an unknown field of a pod": ("spec.template.spec.subdomains", "train"),
    "a text for a number": ("spec.backoffLimit", "twenty"),
    "a number for a text": ("spec.template.spec.containers.0.env.0.value", 2),
}


def changed(manifest: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    result: Any = copy.deepcopy(manifest)
    place = result
    *parents, last = (int(key) if key.isdigit() else key for key in path.split("."))
    for key in parents:
        place = place[key]
    place[last] = value
    return result


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_would_be_seen(case: str) -> None:
    wrong = changed(document("multi_worker", "Job"), *WRONG[case])
    with pytest.raises(kubernetes_validate.ValidationError):
        check_as_kubernetes(wrong, VERSIONS[-1])


def test_kubeflow_allows_the_manifest() -> None:
    (job,) = documents("parameter_server")
    check_as_kubeflow(job, "KubeflowOrgV1TFJob", "TFJob")
    for spec in job["spec"]["tfReplicaSpecs"].values():
        template = {"apiVersion": "v1", "kind": "PodTemplate", **spec}
        for name in ("replicas", "restartPolicy"):
            template.pop(name)
        for version in VERSIONS:
            check_as_kubernetes(template, version)


WRONG_TFJOB = {
    "a misspelt policy": ("spec.runPolicys", {}),
    "a policy of another place": ("spec.tfReplicaSpecs.PS.backoffLimit", 3),
    "no replicas": ("spec", {"runPolicy": {}}),
    "a text for a number": ("spec.tfReplicaSpecs.Worker.replicas", "two"),
}


@pytest.mark.parametrize("case", WRONG_TFJOB)
def test_what_is_wrong_in_a_tfjob_would_be_seen(case: str) -> None:
    wrong = changed(document("parameter_server", "TFJob"), *WRONG_TFJOB[case])
    with pytest.raises((TypeError, ValueError)):
        check_as_kubeflow(wrong, "KubeflowOrgV1TFJob", "TFJob")


def test_a_job_is_tried_again_after_the_exit_codes_that_ask_for_it() -> None:
    spec = document("multi_worker", "Job")["spec"]
    actions: dict[str, set[int]] = {}
    for rule in spec["podFailurePolicy"]["rules"]:
        if "onExitCodes" in rule:
            codes = rule["onExitCodes"]
            assert codes["operator"] == "In"
            assert codes["containerName"] == container_of(spec["template"])["name"]
            actions.setdefault(rule["action"], set()).update(codes["values"])
    assert actions == {"FailJob": FINAL, "Ignore": {ExitCode.TERMINATED}}
    # After a lost peer the job is tried again, but not for ever.
    assert spec["backoffLimit"] > 0
    # podFailurePolicy requires it, and a new pod has another name than a pod whose
    # container is started again.
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"]


def test_a_tfjob_is_tried_again_after_the_exit_codes_that_ask_for_it() -> None:
    """ExitCode restarts from 128 on (training-operator, pkg/util/train, 1.9)."""
    specs = document("parameter_server", "TFJob")["spec"]["tfReplicaSpecs"]
    assert {spec["restartPolicy"] for spec in specs.values()} == {"ExitCode"}
    assert all(code < 128 for code in FINAL)
    assert min(ExitCode.PEER_LOST, ExitCode.TERMINATED) >= 128
    for spec in specs.values():
        # The operator looks for these names (TFJob, API reference).
        assert container_of(spec["template"])["name"] == "tensorflow"
        (port,) = container_of(spec["template"])["ports"]
        assert port == {"name": "tfjob-port", "containerPort": PORT}


def templates() -> list[dict[str, Any]]:
    tasks = document("parameter_server", "TFJob")["spec"]["tfReplicaSpecs"].values()
    job = document("multi_worker", "Job")["spec"]["template"]
    return [job, *(spec["template"] for spec in tasks)]


def test_every_pod_has_the_time_for_a_checkpoint() -> None:
    """A checkpoint takes up to 10 s, and a Job waits up to 360 s between two tries."""
    for template in templates():
        assert template["spec"]["terminationGracePeriodSeconds"] > 10
        words = " ".join(container_of(template)["args"]).split()
        (waits,) = (
            w for w in words if w.startswith("--set=strategy.startup_timeout_seconds=")
        )
        assert float(waits.rpartition("=")[2]) > 360
        assert "--resume=auto" in words


def test_no_task_is_the_first_process_of_its_pod() -> None:
    assert all(t["spec"]["shareProcessNamespace"] is True for t in templates())


_HANGS_AT_START = """
import time
from strategies.cluster.watchdog_process import WatchdogProcess
watch = WatchdogProcess({"worker-1": "127.0.0.1:1"}, 0.5)
time.sleep(5)
watch.end()
"""
_NAMESPACE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")


def _has_process_namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    words = [*_NAMESPACE, "true"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(
    not _has_process_namespaces(), reason="the kernel allows no process namespace"
)
@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ((), 0),
        # A shell is the first process, in place of the one that Kubernetes starts.
        (("sh", "-c", '"$@"; exit $?', "sh"), ExitCode.PEER_LOST),
    ],
)
def test_only_the_first_process_of_a_pod_outlives_its_watchdog(
    before: tuple[str, ...], expected: int
) -> None:
    program = [sys.executable, "-c", _HANGS_AT_START]
    done = subprocess.run(
        [*_NAMESPACE, *before, *program],
        cwd=ROOT,
        env=processes.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == expected, done.stderr
    assert "worker-1" in done.stderr


def container_of(template: Mapping[str, Any]) -> dict[str, Any]:
    (container,) = template["spec"]["containers"]
    return container


# Pods, as hosts with different addresses

TRAINING = ["--model=mlp", "--hidden_units=8", "--train_steps=20"]


def pods_of_job(job: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields the name of each pod for others, and the Job controller's variables."""
    assert (
        document("multi_worker", "Service")["metadata"]["name"]
        == (job["spec"]["template"]["spec"]["subdomain"])
    )
    for index in range(job["spec"]["completions"]):
        name = f"{job['metadata']['name']}-{index}.train"
        yield name, {"JOB_COMPLETION_INDEX": str(index)}


def pods_of_tfjob(job: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields the name of each pod for others, and the operator's variables.

    They follow controller.v1/tensorflow/tensorflow.go of the operator.
    """
    specs = job["spec"]["tfReplicaSpecs"]
    name = job["metadata"]["name"]
    names = {
        kind.lower(): [
            f"{name}-{kind.lower()}-{i}.default.svc" for i in range(spec["replicas"])
        ]
        for kind, spec in specs.items()
    }
    addresses = {
        job: tuple(f"{name}:{PORT}" for name in found) for job, found in names.items()
    }
    for kind, found in names.items():
        for index, pod in enumerate(found):
            cluster = Cluster(job=kind, index=index, addresses=addresses)
            # The operator adds this key.
            text = cluster.tf_config().removesuffix("}") + ', "environment": "cloud"}'
            yield pod, {"TF_CONFIG": text}


def start(
    container: Mapping[str, Any],
    given: Mapping[str, str],
    before: list[str],
    volume: pathlib.Path,
    python: pathlib.Path = pathlib.Path(sys.executable),
) -> subprocess.Popen[str]:
    """Starts the command of a pod, with a folder in place of its volume."""
    (mount,) = container["volumeMounts"]
    *arguments, last = [
        text.replace(f"={mount['mountPath']}/", f"={volume}/")
        for text in container["args"]
    ]
    if container["command"][0] == "sh":
        command = [*arguments, f"{last.rstrip()} {' '.join(TRAINING)}"]
    else:
        command = [*arguments, last, *TRAINING]
    own = {entry["name"]: entry["value"] for entry in container.get("env", ())}
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(
        [*before, *container["command"], *command],
        cwd=ROOT,
        env={**processes.environment(), **own, **given, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def with_host_names(hosts: Hosts, host: int, file: pathlib.Path) -> list[str]:
    """Returns the words before a command on a host, where a file has the names."""
    mount = 'mount --bind "$0" /etc/hosts && exec "$@"'
    return [*hosts.before(host), "unshare", "--mount", "sh", "-c", mount, str(file)]


KINDS = [("multi_worker", "Job"), ("parameter_server", "TFJob")]


def container_and_pods(
    job: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """Returns the container of a job, and variables by the names of its pods."""
    if job["kind"] == "Job":
        return container_of(job["spec"]["template"]), dict(pods_of_job(job))
    chief = job["spec"]["tfReplicaSpecs"]["Chief"]
    return container_of(chief["template"]), dict(pods_of_tfjob(job))


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_each_pod_is_given_flags_and_its_place(
    name: str, kind: str, tmp_path: pathlib.Path
) -> None:
    job = document(name, kind)
    container, pods = container_and_pods(job)
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$TF_CONFIG" "$@"\n', "utf-8")
    python.chmod(0o755)
    clusters = []
    for given in pods.values():
        with start(container, given, [], tmp_path, python) as process:
            done = processes.end_of(process)
        assert (done.returncode, done.stderr) == (0, "")
        tf_config, module, *flags = done.stdout.splitlines()
        assert module == "-m"
        config = parse(flags)
        assert config.run.run_dir == str(tmp_path / job["metadata"]["name"])
        assert config.length.train_steps == 20
        clusters.append(parse_tf_config(tf_config))
        assert clusters[-1].job in config.strategy.traits.roles
    assert [cluster.address for cluster in clusters] == [f"{p}:{PORT}" for p in pods]
    for cluster in clusters:
        assert sorted(cluster.tasks().values()) == sorted(f"{p}:{PORT}" for p in pods)


# tests/cluster/test_separate_hosts.py trains on several hosts.
@pytest.mark.cluster
@pytest.mark.exhaustive
@pytest.mark.skipif(bool(reason_for_none()), reason=reason_for_none())
@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_pods_train_together(name: str, kind: str, tmp_path: pathlib.Path) -> None:
    job = document(name, kind)
    container, pods = container_and_pods(job)
    names = tmp_path / "hosts"
    with separate_hosts(len(pods)) as hosts:
        lines = [f"{hosts.address(host)} {pod}" for host, pod in enumerate(pods)]
        names.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]), "utf-8")
        started = [
            start(
                container,
                given,
                with_host_names(hosts, host, names),
                tmp_path,
            )
            for host, given in enumerate(pods.values())
        ]
        try:
            ends = [processes.end_of(process) for process in started]
        finally:
            for process in started:
                process.kill()
                process.wait()
    assert [end.returncode for end in ends] == [0] * len(pods), [e.stderr for e in ends]
    result = result_of(tmp_path / job["metadata"]["name"])
    assert (result["status"], result["steps"]) == ("completed", 20)
    found = [address for tasks in result["cluster"].values() for address in tasks]
    assert sorted(found) == sorted(f"{pod}:{PORT}" for pod in pods)
