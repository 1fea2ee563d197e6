import contextlib
import dataclasses
import json
import math
import os
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

from strategies.common.errors import UsageError
from tests import processes
from tests.markers import chosen, further
from trainers.run_dir import checkpoint_manifest, checkpoints
from trainers.run_dir.checkpoint_names import checkpoints_in
from trainers.run_dir.checkpoints import Checkpoints, weights_sha256
from trainers.run_dir.train_state import RollbackHistory, TrainCounters

INDEX = "variables.index"
DATA = "variables.data-00000-of-00001"
COMMIT = "commit.json"


class Network(NamedTuple):
    """A tiny model, its optimizer and the number of its steps."""

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    step: tf.Variable


def made(units: int = 4, optimizer: str = "adam", dtype: str = "float32") -> Network:
    features = keras.Input((3,))
    hidden = keras.layers.Dense(units, dtype=dtype)(features)
    model = keras.Model(features, keras.layers.Dense(2, dtype=dtype)(hidden))
    built = keras.optimizers.get(optimizer)
    built.build(model.trainable_variables)
    return Network(model, built, tf.Variable(0, dtype=tf.int64))


class Run:
    """A tiny model with the checkpoints of its training."""

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        keep: int = 3,
        units: int = 4,
        optimizer: str = "adam",
        dtype: str = "float32",
        network: Network | None = None,
        replica_state: Sequence[tf.Variable] = (),
    ):
        network = network or made(units, optimizer, dtype)
        self.model, self.optimizer, self.step = network
        self.folder = folder
        self.warnings: list[str] = []
        self.checkpoints = Checkpoints(
            folder,
            model=self.model,
            optimizer=self.optimizer,
            step=self.step,
            keep=keep,
            replica_state=replica_state,
        )

    def train_to(self, step: int) -> None:
        """Takes every value to what depends on the step alone."""
        for variable, value in zip(self._variables(), self._at(step), strict=True):
            variable.assign(value)

    def save(self, step: int, **state: Any) -> pathlib.Path:
        self.train_to(step)
        return self.checkpoints.save(state or {"interval_sums": {"loss": step / 3}})

    def restore(self) -> Mapping[str, Any] | None:
        return self.checkpoints.restore_newest(self.warnings.append)

    def values(self) -> list[list[float]]:
        return [np.ravel(v.numpy()).tolist() for v in self._variables()]

    def values_at(self, step: int) -> list[list[float]]:
        """Returns `values` after `train_to`."""
        return [np.ravel(value).tolist() for value in self._at(step)]

    def _at(self, step: int) -> list[np.ndarray]:
        numbers = [v.numpy() for v in self._variables()]
        parts = [step + index / 10 for index in range(len(numbers) - 1)]
        return [
            np.full(number.shape, part, number.dtype)
            for number, part in zip(numbers, [*parts, step], strict=True)
        ]

    def _variables(self) -> list[Any]:
        return [*self.model.weights, *self.optimizer.variables, self.step]


def names_in(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# There and back


def test_everything_is_restored(tmp_path: pathlib.Path) -> None:
    state = {
        "interval_sums": {"loss": 1 / 3, "examples": 128.0, "é": 1},
        "tally": dataclasses.asdict(TrainCounters(attempted_steps=8, examples_seen=64)),
        "rollbacks": dataclasses.asdict(RollbackHistory(count=1, restored_step=5)),
    }
    saved = Run(tmp_path)
    path = saved.save(7, **state)
    assert path == tmp_path / "step-00000007"
    restored = Run(tmp_path)
    assert restored.values() != saved.values()
    assert restored.restore() == state
    assert restored.values() == saved.values() == restored.values_at(7)
    assert restored.warnings == []


class Blocks(keras.Model):
    """A model with layers in lists and dictionaries, and in other layers' lists."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [keras.layers.Dense(4), keras.layers.BatchNormalization()]
        self.heads = {"head": [keras.layers.Dense(2, trainable=False)]}
        cells = [keras.layers.LSTMCell(4), keras.layers.LSTMCell(3)]
        self.recurrent = keras.layers.RNN(cells)

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        for block in self.blocks:
            inputs = block(inputs, training=training)
        (head,) = self.heads["head"]
        return head(self.recurrent(inputs))


@pytest.mark.parametrize("name", ["adam", "both"])
def test_layers_and_optimizers_in_lists_are_restored(
    tmp_path: pathlib.Path, name: str
) -> None:
    def network() -> Network:
        model = Blocks()
        model(tf.zeros([2, 5, 3]))
        one, other = keras.optimizers.Adam(), keras.optimizers.SGD(momentum=0.9)
        both = keras.optimizers.MultiOptimizer(
            lambda variable: one if "kernel" in variable.path else other
        )
        optimizer = {"adam": keras.optimizers.Adam(), "both": both}[name]
        optimizer.build(model.trainable_variables)
        return Network(model, optimizer, tf.Variable(0, dtype=tf.int64))

    saved = Run(tmp_path, network=network())
    saved.save(7)
    restored = Run(tmp_path, network=network())
    restored.restore()
    assert restored.values() == saved.values() == restored.values_at(7)


def test_state_of_replicas_is_restored_by_its_name(tmp_path: pathlib.Path) -> None:
    errors = tf.Variable([7.0], name="error")
    Run(tmp_path, replica_state=[errors]).save(1)
    for name, expected in (("error", 7.0), ("weight", 0.0)):
        state = tf.Variable([0.0], name=name)
        Run(tmp_path, replica_state=[state]).restore()
        assert state.numpy().tolist() == [expected]


def test_a_state_larger_than_a_manifest_may_be_is_restored(
    tmp_path: pathlib.Path,
) -> None:
    """EarlyStopping keeps as many bytes as the model has."""
    weights = [{"/array": "A" * (17 << 20)}]
    state = {"callbacks": {"0/EarlyStopping": {"best_weights": weights}}}
    path = Run(tmp_path).save(7, **state)
    assert (path / COMMIT).stat().st_size < 1 << 20
    restored = Run(tmp_path)
    assert restored.restore() == state
    (path / "state.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError, match="is damaged"):
        restored.restore()
    assert "state.json is not what was written" in restored.warnings[0]


def test_real_optimizer_state_is_restored_to_the_bit(tmp_path: pathlib.Path) -> None:
    saved = Run(tmp_path)
    generator = np.random.default_rng(0)
    for _ in range(3):
        gradients = [
            generator.standard_normal(v.shape, np.float32)
            for v in saved.model.trainable_variables
        ]
        saved.optimizer.apply(gradients, saved.model.trainable_variables)
    saved.checkpoints.save({})
    restored = Run(tmp_path)
    restored.restore()
    assert restored.values() == saved.values()
    assert weights_sha256(restored.model) == weights_sha256(saved.model)
    assert int(restored.optimizer.iterations.numpy()) == 3


def test_without_checkpoints_there_is_nothing_to_restore(
    tmp_path: pathlib.Path,
) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        run = Run(folder)
        before = run.values()
        assert run.restore() is None
        assert run.values() == before
        assert not checkpoints_in(folder)
    assert processes.contents(tmp_path) == {}


def test_the_newest_of_several_is_restored(tmp_path: pathlib.Path) -> None:
    run = Run(tmp_path, keep=9)
    # In an order in which neither names nor times of writing give the answer away.
    for step in (20, 100_000_000, 3):
        run.save(step)
    run.restore()
    assert run.values() == run.values_at(100_000_000)


def test_restoring_reads_only(tmp_path: pathlib.Path) -> None:
    run = Run(tmp_path)
    run.save(1)
    run.save(2)
    (tmp_path / ".writing-step-00000003").mkdir()
    before = processes.contents(tmp_path)
    run.restore()
    assert processes.contents(tmp_path) == before


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept(tmp_path: pathlib.Path, keep: int) -> None:
    run = Run(tmp_path, keep=keep)
    for step in (5, 10, 15, 20):
        run.save(step)
    expected = [f"step-{step:08d}" for step in (5, 10, 15, 20)][-keep:]
    assert names_in(tmp_path) == expected


def test_what_is_not_a_checkpoint_is_left_alone(tmp_path: pathlib.Path) -> None:
    foreign = ["step-1", "step-0000001", "step-000000001", "step-00000001.old", "notes"]
    foreign += [
        "step-" + "\N{ARABIC-INDIC DIGIT ONE}" * 8,
        "checkpoint",
        ".hidden",
        "writing-step-00000001",
    ]
    for name in foreign:
        (tmp_path / name).mkdir()
    run = Run(tmp_path, keep=1)
    assert run.restore() is None
    for step in (1, 2, 3):
        run.save(step)
    assert names_in(tmp_path) == sorted([*foreign, "step-00000003"])


def test_weights_have_one_digest_that_any_change_alters(tmp_path: pathlib.Path) -> None:
    run = Run(tmp_path)
    run.train_to(3)
    before = weights_sha256(run.model)
    assert before == weights_sha256(run.model)
    kernel = run.model.weights[0]
    kernel.assign(np.nextafter(kernel.numpy(), np.float32(np.inf)))
    assert weights_sha256(run.model) != before
    run.train_to(3)
    assert weights_sha256(run.model) == before


# Killed while saving


class Killed(BaseException):
    """Stands for kill -9: nothing in the program catches it."""


def kill(*arguments: Any, **named: Any) -> None:
    raise Killed


MOMENTS = {
    "before anything": (checkpoints.Checkpoints, "remove_unfinished"),
    "before the variables": (tf.train.Checkpoint, "write"),
    "before the commit": (checkpoints, "write_commit"),
    "while the commit is written": (checkpoint_manifest, "_digest"),
    "before the rename": (pathlib.Path, "rename"),
    "after the rename": (checkpoints, "sync_to_disk"),
    "before the oldest is removed": (shutil, "rmtree"),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("keep", [1, further(2)])
def test_a_run_killed_while_saving_has_a_whole_checkpoint(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, moment: str, keep: int
) -> None:
    run = Run(tmp_path, keep=keep)
    run.save(1)
    run.save(2)
    with monkeypatch.context() as patched:
        owner, name = MOMENTS[moment]
        patched.setattr(owner, name, kill)
        with pytest.raises(Killed):
            run.save(3)
    again = Run(tmp_path, keep=keep)
    again.restore()
    assert int(again.step.numpy()) in (2, 3)
    assert again.values() == again.values_at(int(again.step.numpy()))
    assert again.warnings == []
    again.save(4)
    kept = [f"step-{s:08d}" for s in (2, 3, 4) if (tmp_path / f"step-{s:08d}").exists()]
    assert names_in(tmp_path) == kept[-keep:], "something was left over"


@pytest.mark.parametrize("moment", MOMENTS)
def test_saving_a_step_again_is_never_without_its_checkpoint(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    run = Run(tmp_path, keep=1)
    run.save(1)
    with monkeypatch.context() as patched:
        patched.setattr(*MOMENTS[moment], kill)
        with contextlib.suppress(Killed):
            run.save(1)
    again = Run(tmp_path)
    again.restore()
    assert again.values() == again.values_at(1)


def test_leftovers_of_any_kind_are_removed_and_not_followed(
    tmp_path: pathlib.Path,
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / ".writing-step-00000001").mkdir()
    (folder / ".writing-step-00000001" / INDEX).write_text("half")
    (folder / ".writing-step-00000002").write_text("a file")
    (folder / ".writing-step-00000003").symlink_to(outside)
    Run(folder).save(5)
    assert names_in(folder) == ["step-00000005"]
    assert names_in(outside) == ["precious"]


# Damage

Damage = Callable[[pathlib.Path, pathlib.Path], None]


def forge(change: Callable[[dict[str, Any]], object]) -> Damage:
    """Changes commit.json and signs it anew, as chance would never do."""

    def damage(newest: pathlib.Path, outside: pathlib.Path) -> None:
        path = newest / COMMIT
        content = json.loads(path.read_text(encoding="utf-8"))
        del content["sha256"]
        change(content)
        content["sha256"] = checkpoint_manifest._digest(content)
        path.write_text(json.dumps(content), encoding="utf-8")

    return damage


def set_to(key: str, value: Any) -> Damage:
    return forge(lambda content: content.update({key: value}))


def without(key: str) -> Damage:
    return forge(lambda content: content.pop(key))


def in_files(name: str, **values: Any) -> Damage:
    return forge(lambda content: content["files"][name].update(values))


def of_file(change: Callable[[bytes], bytes], name: str) -> Damage:
    def damage(newest: pathlib.Path, outside: pathlib.Path) -> None:
        path = newest / name
        path.write_bytes(change(path.read_bytes()))

    return damage


def flipped(position: float) -> Callable[[bytes], bytes]:
    """Turns one bit around, at a fraction of the length."""

    def flip(content: bytes) -> bytes:
        changed = bytearray(content)
        changed[int(position * (len(content) - 1))] ^= 1
        return bytes(changed)

    return flip


def instead_of(name: str, kind: str) -> Damage:
    def damage(newest: pathlib.Path, outside: pathlib.Path) -> None:
        path = newest / name
        # Where a link leads there is what belongs here, or a pipe: whoever opens a
        # pipe that nobody writes to waits for ever.
        shutil.copy(path, outside / name)
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "link":
            path.symlink_to(outside / name)
        elif kind == "link to a pipe":
            path.symlink_to(outside / "pipe")
        elif kind == "link to nowhere":
            path.symlink_to(outside / "missing")

    return damage


def folder_instead(kind: str) -> Damage:
    def damage(newest: pathlib.Path, outside: pathlib.Path) -> None:
        shutil.move(newest, outside / "moved")
        if kind == "file":
            newest.write_text("x")
        elif kind == "empty folder":
            newest.mkdir()
        elif kind == "link":
            newest.symlink_to(outside / "moved")
        elif kind == "link to nowhere":
            newest.symlink_to(outside / "missing")
        elif kind == "pipe":
            os.mkfifo(newest)

    return damage


def names_a_file(name: str) -> Damage:
    """Lets commit.json name one more file, which matches if it is opened."""

    def damage(newest: pathlib.Path, outside: pathlib.Path) -> None:
        target = newest / name.replace("OUTSIDE", str(outside))
        entry = {"bytes": 0, "sha256": "0" * 64}
        if name.endswith(("precious", COMMIT)) and target.exists():
            size = len(target.read_bytes())
            entry = {"bytes": size, "sha256": checkpoint_manifest._sha256(target)}
        path = name.replace("OUTSIDE", str(outside))
        forge(lambda content: content["files"].update({path: entry}))(newest, outside)

    return damage


def swap_files(newest: pathlib.Path, outside: pathlib.Path) -> None:
    index, data = (newest / INDEX).read_bytes(), (newest / DATA).read_bytes()
    (newest / INDEX).write_bytes(data)
    (newest / DATA).write_bytes(index)


def from_the_one_before(name: str) -> Damage:
    def damage(newest: pathlib.Path, outside: pathlib.Path) -> None:
        shutil.copy(newest.parent.parent / "one before" / name, newest / name)

    return damage


def add_file(newest: pathlib.Path, outside: pathlib.Path) -> None:
    (newest / "variables.data-00001-of-00002").write_bytes(b"more")


def add_folder(newest: pathlib.Path, outside: pathlib.Path) -> None:
    (newest / "more").mkdir()


def add_link(newest: pathlib.Path, outside: pathlib.Path) -> None:
    (newest / "more").symlink_to(outside)


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def text(content: str) -> Damage:
    return of_file(lambda _: content.encode(), COMMIT)


ODD_COUNTS: tuple[Any, ...] = ("1", 1.5, True, {}, [])
# Wrong values of the keys of commit.json, and of the keys of each of its files.
WRONG: dict[str, tuple[Any, ...]] = {
    "schema_version": (0, 2, "1", None, 10**30),
    "step": (1, 21, -20, 10**30, "20", 20.0, True, None, [20]),
    "files": ({}, None, [], [INDEX, DATA], {INDEX: None, DATA: None}),
    "variables": (None, [], {"model": None}, {"model": [3]}, {"model": [{}]}),
    "state": (
        *(None, [], 3, "text", {"other": {}}, {"tally": None}, {"tally": 3}),
        *({"tally": {"steps": 1}}, {"tally": {"attempted_steps": None}}),
        *({"tally": {"examples_seen": odd}} for odd in ODD_COUNTS),
        *({"rollbacks": {"count": odd}} for odd in (None, *ODD_COUNTS)),
        *({"interval_sums": {"loss": odd}} for odd in ("1", math.inf)),
        {"rollbacks": {"learning_rate_factor": "half"}},
    ),
}
WRONG_IN_FILES: dict[str, tuple[Any, ...]] = {
    "bytes": (-1, 0, 10**30, "9", None, []),
    "sha256": ("", "0" * 64, None, 3),
}

DAMAGES: dict[str, Damage] = {
    **{
        f"{name} {what}": of_file(change, name)
        for name in (INDEX, DATA, COMMIT)
        for what, change in {
            "truncated": half,
            "one byte short": lambda content: content[:-2],
            "emptied": lambda content: b"",
            "longer": lambda content: content + b"x",
            "zeroed": lambda content: bytes(len(content)),
            "first bit flipped": flipped(0),
            "a bit flipped": flipped(0.3),
            "the middle bit flipped": flipped(0.5),
            "another bit flipped": flipped(0.8),
            "last bit flipped": flipped(1),
        }.items()
    },
    **{
        f"{name} is a {kind}": instead_of(name, kind)
        for name in (INDEX, DATA, COMMIT)
        for kind in ("folder", "pipe", "link", "link to a pipe", "link to nowhere")
    },
    **{f"{name} missing": instead_of(name, "") for name in (INDEX, DATA, COMMIT)},
    **{
        f"checkpoint is a {kind}": folder_instead(kind)
        for kind in ("file", "empty folder", "link", "link to nowhere", "pipe")
    },
    **{
        f"{name} of the one before": from_the_one_before(name)
        for name in (INDEX, DATA, COMMIT)
    },
    "files swapped": swap_files,
    "a file more": add_file,
    "a folder more": add_folder,
    "a link more": add_link,
    **{
        f"commit.json is {content[:9]!r}": text(content)
        for content in (
            "{}",
            "[]",
            "null",
            "3",
            '"text"',
            "[" * 99_999,
            " " * (17 << 20),
        )
    },
    **{
        f"commit.json without {key}": without(key)
        for key in ("schema_version", "step", "files", "variables", "state")
    },
    **{
        f"{key}={value!r:.60}": set_to(key, value)
        for key, values in WRONG.items()
        for value in values
    },
    **{
        f"{name} of {key}={value!r:.20}": in_files(name, **{key: value})
        for name in (INDEX, DATA)
        for key, values in WRONG_IN_FILES.items()
        for value in values
    },
    **{
        f"commit.json names {name}": names_a_file(name)
        for name in (
            "../../outside/precious",
            "OUTSIDE/precious",
            "OUTSIDE/pipe",
            "../step-00000010/commit.json",
            "..",
            ".",
            "",
            "/",
            "~",
            "a\0b",
            "x" * 300,
            COMMIT,
        )
    },
    "commit.json without the data": forge(lambda content: content["files"].pop(DATA)),
}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Checkpoints of steps 10 and 20. To be copied, not changed."""
    folder = tmp_path_factory.mktemp("pristine")
    run = Run(folder)
    run.save(10)
    run.save(20)
    return folder


@pytest.fixture
def folder(pristine: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """Returns a copy of the checkpoints, beside files that must stay untouched."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    os.mkfifo(outside / "pipe")
    shutil.copytree(pristine / "step-00000010", tmp_path / "one before")
    shutil.copytree(pristine, tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


@pytest.fixture(scope="module")
def network() -> Network:
    """Returns the network of all damaged checkpoints; to make one takes half a test."""
    return made()


# A damage of each kind. What is noticed does not depend on the other checkpoints, and
# the next test has every damage.
OF_EACH_KIND = (
    f"{INDEX} truncated",
    f"{DATA} a bit flipped",
    f"{COMMIT} zeroed",
    f"{INDEX} is a folder",
    f"{DATA} is a link",
    f"{COMMIT} is a pipe",
    f"{COMMIT} is a link to nowhere",
    f"{DATA} missing",
    f"{COMMIT} missing",
    *(f"checkpoint is a {kind}" for kind in ("file", "empty folder", "link", "pipe")),
    f"{DATA} of the one before",
    f"{COMMIT} of the one before",
    *("files swapped", "a file more", "a folder more", "a link more"),
    "commit.json is '[[[[[[[[['",
    "commit.json without files",
    "step=21",
    f"{DATA} of bytes=0",
    "commit.json names ../../outside/precious",
    "commit.json names ../step-00000010/commit.json",
    "commit.json without the data",
)


@pytest.mark.parametrize("damage", chosen(DAMAGES, OF_EACH_KIND))
def test_damage_to_the_newest_is_told_and_the_one_before_restored(
    folder: pathlib.Path, network: Network, damage: str
) -> None:
    newest = folder / "step-00000020"
    DAMAGES[damage](newest, folder.parent / "outside")
    before = processes.contents(folder.parent)
    run = Run(folder, keep=1, network=network)
    run.train_to(0)
    assert run.restore() == {"interval_sums": {"loss": 10 / 3}}
    assert run.values() == run.values_at(10)
    assert_warns_of(newest, run.warnings)
    assert processes.contents(folder.parent) == before

    run.save(15)
    run.train_to(0)
    run.restore()
    assert run.values() == run.values_at(15), "the good one was not kept"
    run.save(20)
    assert names_in(folder) == ["step-00000020"], "the damaged one was not replaced"
    run.warnings.clear()
    run.train_to(0)
    run.restore()
    assert run.values() == run.values_at(20)
    assert run.warnings == []
    after = processes.contents(folder.parent / "outside")
    assert after == {
        name.removeprefix("outside/"): content
        for name, content in before.items()
        if name.startswith("outside/")
    }


def assert_warns_of(path: pathlib.Path, warnings: list[str]) -> None:
    (warning,) = warnings
    assert warning.startswith(f"checkpoint {path} is damaged: ")
    assert len(warning) < 500, "too long to read"
    assert warning.isprintable()


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_to_the_only_one_is_an_error_and_not_a_new_beginning(
    folder: pathlib.Path, network: Network, damage: str
) -> None:
    shutil.rmtree(folder / "step-00000010")
    DAMAGES[damage](folder / "step-00000020", folder.parent / "outside")
    before = processes.contents(folder.parent)
    run = Run(folder, network=network)
    run.train_to(0)
    values = run.values()
    with pytest.raises(UsageError) as raised:
        run.restore()
    assert str(folder) in str(raised.value)
    assert "--run_dir" in str(raised.value)
    assert str(raised.value).isprintable()
    assert run.values() == values
    assert_warns_of(folder / "step-00000020", run.warnings)
    assert checkpoints_in(folder)
    assert processes.contents(folder.parent) == before


def test_every_damaged_one_is_told_about(folder: pathlib.Path) -> None:
    for path in folder.iterdir():
        (path / DATA).write_bytes(b"")
    run = Run(folder)
    with pytest.raises(UsageError, match="every checkpoint"):
        run.restore()
    assert [f"step-000000{n}" in w for n, w in zip((20, 10), run.warnings, strict=True)]


# Checkpoints of something else


@pytest.mark.parametrize(
    ("settings", "difference"),
    [
        ({"units": 5}, "[3, 4]"),
        ({"dtype": "float64"}, "float32"),
        ({"optimizer": "sgd"}, "adam"),
        ({"optimizer": "adagrad"}, "adam"),
    ],
    ids=str,
)
def test_a_checkpoint_of_something_else_is_refused_before_anything_changes(
    folder: pathlib.Path, settings: dict[str, Any], difference: str
) -> None:
    run = Run(folder, **settings)
    values = run.values()
    before = processes.contents(folder.parent)
    with pytest.raises(UsageError) as raised:
        run.restore()
    message = str(raised.value)
    assert "step-00000020 does not fit" in message
    assert difference in message
    assert message.isprintable()
    assert run.values() == values
    assert run.warnings == []
    assert processes.contents(folder.parent) == before


def test_a_deeper_model_is_refused_either_way(tmp_path: pathlib.Path) -> None:
    class Deeper(Run):
        def __init__(self, folder: pathlib.Path):
            super().__init__(folder)
            features = keras.Input((3,))
            hidden = keras.layers.Dense(4)(features)
            hidden = keras.layers.Dense(2)(hidden)
            self.model = keras.Model(features, keras.layers.Dense(2)(hidden))
            self.optimizer = keras.optimizers.SGD()
            self.optimizer.build(self.model.trainable_variables)
            self.checkpoints = Checkpoints(
                folder,
                model=self.model,
                optimizer=self.optimizer,
                step=self.step,
                keep=1,
            )

    Run(tmp_path / "flat", optimizer="sgd").save(1)
    with pytest.raises(UsageError, match="no more variables"):
        Deeper(tmp_path / "flat").restore()
    Deeper(tmp_path / "deep").save(1)
    with pytest.raises(UsageError, match="no more variables"):
        Run(tmp_path / "deep", optimizer="sgd").restore()


def test_one_that_does_not_fit_is_not_passed_over_for_an_older_one(
    folder: pathlib.Path,
) -> None:
    Run(folder, units=5).save(30)
    run = Run(folder)
    with pytest.raises(UsageError, match="step-00000030 does not fit"):
        run.restore()


MEBIBYTE = 1 << 20


def test_a_bit_flipped_anywhere_in_a_large_file_is_seen(tmp_path: pathlib.Path) -> None:
    """Digests read a file in pieces, and cover those after the first, too."""
    run = Run(tmp_path, units=100_000)
    run.save(10)
    newest = run.save(20)
    assert (newest / DATA).stat().st_size > 4 * MEBIBYTE
    for name in (INDEX, DATA, COMMIT):
        size = (newest / name).stat().st_size
        evenly = {int(position) for position in np.linspace(0, size - 1, 16)}
        at_borders = {n * MEBIBYTE + i for n in range(1, 5) for i in (-1, 0, 1)}
        for position in sorted({p for p in evenly | at_borders if p < size}):
            flip_bit(newest / name, position)
            with pytest.raises(checkpoint_manifest.DamagedError):
                checkpoint_manifest.read_commit(newest, 20)
            flip_bit(newest / name, position)
    checkpoint_manifest.read_commit(newest, 20)
    flip_bit(newest / DATA, (newest / DATA).stat().st_size - 1)
    run.restore()
    assert run.values() == run.values_at(10)
    (warning,) = run.warnings
    assert f"{newest} is damaged: {DATA} is not what was written" in warning


def flip_bit(path: pathlib.Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))
