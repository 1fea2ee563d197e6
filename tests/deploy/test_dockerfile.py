"""Tests of the image of the manifests that need no Docker."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Any

import pytest
import yaml

from tests.processes import PATIENCE_SECONDS, ROOT, result_of

FOLDER = ROOT / "deploy" / "kubernetes"


def instructions() -> list[list[str]]:
    """Returns the words of each instruction; of ENTRYPOINT, the items of its list."""
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    found = []
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name and name != "#":
            words = json.loads(rest) if name == "ENTRYPOINT" else rest.split()
            found.append([name, *words])
    return found


def only(name: str) -> list[str]:
    (words,) = (words[1:] for words in instructions() if words[0] == name)
    return words


def copied() -> dict[str, str]:
    """Returns the path in the image's working directory of each copied path."""
    return {words[1]: words[2] for words in instructions() if words[0] == "COPY"}


def containers() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted(FOLDER.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            spec = document["spec"]
            replicas = spec.get("tfReplicaSpecs", {}).values()
            for each in replicas or [spec] * ("template" in spec):
                found += each["template"]["spec"]["containers"]
    return found


def test_manifests_run_what_the_image_has_where_it_has_it() -> None:
    entry = only("ENTRYPOINT")
    found = containers()
    assert len(found) == 4
    for container in found:
        assert [container["workingDir"]] == only("WORKDIR")
        if container["command"] == ["sh", "-c"]:
            assert f"exec {' '.join(entry)} --strategy=" in str(container["args"])
        else:
            assert container["command"] == entry


def test_the_image_installs_the_lock_by_its_hashes_on_a_python_that_will_do() -> None:
    """The version of Python is exact, so that a later image has the same."""
    (base,) = only("FROM")
    version = re.fullmatch(r"python:3\.(\d+)\.\d+-slim-\w+", base)
    assert version is not None
    assert 10 <= int(version[1]) <= 13
    installs = only("RUN")
    lock = installs[installs.index("--requirement") + 1]
    assert copied()[lock] == f"{pathlib.Path(lock).parent}/"
    assert "--require-hashes" in installs
    # The lock is copied before pip reads it.
    names = [words[0] for words in instructions()]
    assert names.index("COPY") < names.index("RUN")


def test_what_the_build_is_given_is_what_is_copied() -> None:
    text = (FOLDER / "Dockerfile.dockerignore").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == set(copied())


@pytest.mark.slow
def test_what_is_copied_is_enough_to_train(tmp_path: pathlib.Path) -> None:
    """The run has neither the rest of the repository nor programs such as git."""
    image = tmp_path / "image"
    for source, target in copied().items():
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, image / target)
    python, *words = only("ENTRYPOINT")
    small = ["--model=mlp", "--hidden_units=8", "--train_steps=2"]
    flags = ["--strategy=mirrored", *small, "--run_dir=runs/one"]
    done = subprocess.run(
        [pathlib.Path(sys.executable).with_name(python), *words, *flags],
        cwd=image,
        env={"PATH": os.fspath(tmp_path / "nothing"), "HOME": os.fspath(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert result_of(image / "runs" / "one")["steps"] == 2
