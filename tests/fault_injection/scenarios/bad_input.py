"""A scenario of wrong flags, files and folders, given to the real command."""

import dataclasses
import json
import pathlib
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping

from tests import processes
from tests.cluster.wrong_tf_config import WRONG as WRONG_TF_CONFIGS
from tests.fault_injection.scenario import Scenario
from tests.invalid_commands import (
    BEFORE_TENSORFLOW,
    DOES_NOT_FIT_TOGETHER,
    NEEDS_DEVICES_OR_DATA,
    NO_FOLDER,
    NO_PLAIN_FILE,
    NO_SUCH_DEVICES_OR_DATA,
    NOT_USED,
    RECORDS,
    RUN_EXISTS,
    SMALL_RUN,
    TOO_LARGE,
    Row,
    row,
    write,
)

_FEWEST = 120
# Python makes this file when the program ends, if it has loaded TensorFlow.
_MARK = "tensorflow-was-loaded"
_REPORTS_TENSORFLOW = f"""
import atexit, os, pathlib, sys

def report(mark=os.environ["KDS_MARKS"] + "/{_MARK}"):
    if "tensorflow" in sys.modules:
        pathlib.Path(mark).touch()

atexit.register(report)
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Request:
    """A wrong command line with its environment.

    Attributes:
      wrong: Wrong command line.
      environment: Variables in addition to a user's.
      run: True if the folder `run` holds a finished run, which `prepare` changes.
      is_early: True if the program must refuse it without TensorFlow.
    """

    wrong: Row
    is_early: bool = False
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    run: bool = False


def _records(content: bytes, words: str) -> Row:
    return row(RECORDS, "some.tfrecord", words, prepare=write("some.tfrecord", content))


# Record files in addition to the tables of tests/invalid_commands.py.
_RECORD_FILES = [
    _records(b"abc", "only 3 of its 12 header bytes exist"),
    _records(bytes(64), "its length is damaged"),
    _records(b"sample,label\n1 2 3 4 5,0\n", "if it is a TFRecord file at all"),
    _records(b"\x1f\x8b\x08" + bytes(20), "the compressed data is damaged"),
    # The header claims 2^40 bytes, with the right checksum.
    _records(bytes.fromhex("0000000000010000aa3d6be4") + b"abc", "1099511627776 bytes"),
]


def _requests() -> Iterator[_Request]:
    # It imports TensorFlow, which takes seconds and is not needed to list scenarios.
    from tests.trainers.inputs.test_cifar10 import DAMAGED as DAMAGED_CIFAR10

    for wrong in (
        *BEFORE_TENSORFLOW,
        *NOT_USED,
        *TOO_LARGE,
        *NO_PLAIN_FILE,
        *NO_FOLDER,
    ):
        yield _Request(wrong=wrong, is_early=True)
    for wrong in (
        *DOES_NOT_FIT_TOGETHER,
        *NEEDS_DEVICES_OR_DATA,
        *NO_SUCH_DEVICES_OR_DATA,
        *_RECORD_FILES,
    ):
        yield _Request(wrong=wrong)
    for wrong in RUN_EXISTS:
        yield _Request(wrong=wrong, run=True)
    for value, words in WRONG_TF_CONFIGS.values():
        text = value if isinstance(value, str) else json.dumps(value)
        command = row("--strategy=multi_worker_mirrored --run_dir=run", words)
        surroundings = {"TF_CONFIG": text}
        yield _Request(wrong=command, environment=surroundings, is_early=True)
    for prepare, words in DAMAGED_CIFAR10.values():
        yield _Request(
            wrong=row(
                "--dataset=cifar10 --model=cifar10 --data_path=data",
                words,
                prepare=_in_data(prepare),
            )
        )


def _in_data(
    prepare: Callable[[pathlib.Path], object],
) -> Callable[[pathlib.Path], object]:
    return lambda folder: prepare(folder / "data")


def _all_are_refused(chosen: random.Random, folder: pathlib.Path) -> float:
    """Returns the longest time of a refusal without TensorFlow, in seconds."""
    # One of the requests trains in this folder again, by the path in its configuration.
    finished = folder / "finished" / "run"
    finished.parent.mkdir()
    processes.train(finished, *SMALL_RUN)
    hook = folder / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(_REPORTS_TENSORFLOW, encoding="utf-8")
    requests = list(_requests())
    assert len(requests) >= _FEWEST, f"only {len(requests)} requests"
    chosen.shuffle(requests)
    broken, times = [], {False: [0.0], True: [0.0]}
    for number, request in enumerate(requests):
        here = folder / str(number)
        try:
            seconds, loaded = _refused(request, here, hook, finished)
            times[loaded].append(seconds)
        except AssertionError as error:
            broken.append(f"{request.wrong}: {error}")
        shutil.rmtree(here)
    without, with_it = times[False], times[True]
    print(
        f"{len(requests)} requests: {len(without) - 1} refused without TensorFlow in "
        f"at most {max(without):.2f} s, {len(with_it) - 1} with it in at most "
        f"{max(with_it):.2f} s"
    )
    assert not broken, f"{len(broken)} of {len(requests)}: {'; '.join(broken)}"
    return max(without)


def _refused(
    request: _Request, here: pathlib.Path, hook: pathlib.Path, finished: pathlib.Path
) -> tuple[float, bool]:
    """Returns the seconds of a refusal, and whether TensorFlow was loaded for it."""
    work, marks = here / "work", here / "marks"
    for folder in (work, marks):
        folder.mkdir(parents=True)
    if request.run:
        shutil.copytree(finished, work / "run")
    request.wrong.prepare(work / "run" if request.run else work)
    before = processes.contents(work)
    environment = {**processes.environment(), **request.environment}
    environment["PYTHONPATH"] = f"{hook}:{environment['PYTHONPATH']}"
    start = time.monotonic()
    done = subprocess.run(
        processes.command(*request.wrong.arguments),
        cwd=work,
        env={**environment, "KDS_MARKS": str(marks)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=processes.PATIENCE_SECONDS,
        check=False,
    )
    seconds = time.monotonic() - start
    loaded = (marks / _MARK).exists()
    _check(request, done)
    assert processes.contents(work) == before, "something was written"
    needless = loaded and request.is_early
    assert not needless, "TensorFlow was loaded, and is not needed for this refusal"
    return seconds, loaded


def _check(request: _Request, done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 2, f"exit code {done.returncode}: {done.stderr[-300:]}"
    assert done.stdout == "", f"printed {done.stdout[:100]}"
    # A warning about a skipped checkpoint may precede the error.
    lines = [
        line
        for line in done.stderr.splitlines()
        if not line.startswith("warning: checkpoint ")
    ]
    assert len(lines) == 1, f"{len(lines)} lines: {done.stderr[-300:]}"
    assert lines[0].startswith("error: "), lines[0]
    assert lines[0].isprintable(), lines[0]
    for words in request.wrong.named:
        assert words in lines[0], f"not {words!r}: {lines[0]}"


SCENARIOS = (
    Scenario(
        name="bad-input",
        promise="a wrong request is one line and exit code 2; nothing is written",
        tries=1,
        attempt=_all_are_refused,
        most_seconds=1.0,
    ),
)
