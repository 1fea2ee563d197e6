"""`--resume=auto` of a program: calls of `fit` that were over before."""

import pathlib
import shutil
import subprocess
import textwrap

import keras
import numpy as np
import pytest

from tests import processes
from tests.event_files import read_events
from tests.markers import further

_PROGRAM = """
import os
import pathlib
import signal

import keras
import numpy as np

keras.utils.set_random_seed(0)
x = np.random.normal(size=(48, 4))
y = x.sum(axis=1)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])


class Once(keras.callbacks.Callback):
    # Does once what another test does not: it ends the process, or raises an error.
    def __init__(self, moment, act):
        super().__init__()
        setattr(self, moment, lambda *arguments: self.first(act))

    def first(self, act):
        if not pathlib.Path("acted").exists():
            pathlib.Path("acted").touch()
            act()


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def stop():
    os.kill(os.getpid(), signal.SIGTERM)


def fail():
    raise OSError("cannot reach the server")
"""
_ONE = ("--strategy=one_device",)


def _run(
    folder: pathlib.Path, text: str, *flags: str
) -> subprocess.CompletedProcess[str]:
    path = folder / "train.py"
    path.write_text(_PROGRAM + textwrap.dedent(text))
    words = [f"--script={path}", f"--run_dir={folder / 'run'}", *flags]
    return processes.run(*words, folder=folder)


def _said(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stdout.splitlines() if line.startswith("said ")]


@pytest.mark.parametrize(
    "strategy",
    [_ONE, further(("--strategy=multi_worker_mirrored", "--num_workers=2"))],
)
def test_a_fit_that_was_over_has_its_best_weights(
    tmp_path: pathlib.Path, strategy: tuple[str, ...]
) -> None:
    text = """
    stop = keras.callbacks.EarlyStopping(
        "loss", patience=2, restore_best_weights=True
    )
    model.compile(keras.optimizers.SGD(1.5), "mse")
    history = model.fit(x, y, epochs=9, batch_size=16, callbacks=[stop])
    print("said", len(history.history["loss"]), stop.stopped_epoch)
    print("said", model.get_weights())
    model.compile("sgd", "mse")
    model.fit(x, y, epochs=2, batch_size=16, callbacks=[Once("on_epoch_begin", kill)])
    print("said", model.get_weights())
    """
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    for folder in (alone, killed):
        folder.mkdir()
    (alone / "acted").touch()
    expected = _said(_run(alone, text, *strategy))
    first = _run(killed, text, *strategy)
    if strategy == _ONE:
        # The launcher of a cluster starts it again by itself.
        assert first.returncode == -9
        first = _run(killed, text, *strategy, "--resume=auto")
    again = _run(killed, text, *strategy, "--resume=auto")
    assert len(expected) == 3
    for done in (first, again):
        assert done.returncode == 0, done.stderr
        assert _said(done)[-3:] == expected
        assert "nothing to do" not in done.stdout


# The fit of the first test was over as well, and is ended once more.
@pytest.mark.exhaustive
def test_a_fit_whose_end_failed_is_ended_again(tmp_path: pathlib.Path) -> None:
    text = """
    model.compile("sgd", "mse")
    model.fit(x, y, epochs=2, batch_size=16, callbacks=[Once("on_train_end", fail)])
    print("said", "saved")
    """
    failed = _run(tmp_path, text, *_ONE)
    assert failed.returncode == 2
    assert "cannot reach the server" in failed.stderr
    assert processes.result_of(tmp_path / "run")["status"] == "failed"
    resumed = _run(tmp_path, text, *_ONE, "--resume=auto")
    assert resumed.returncode == 0, resumed.stderr
    assert "was over at step" not in resumed.stdout
    assert _said(resumed) == ["said saved"]
    result = processes.result_of(tmp_path / "run")
    assert (result["status"], result["steps"]) == ("completed", 6)


# ../run_dir/test_run_dir.py has the result of a folder whose later fits were completed.
@pytest.mark.exhaustive
@pytest.mark.parametrize(("act", "exit_code"), [("stop", 143), ("fail", 2)])
def test_a_fit_that_was_completed_stays_so_while_an_earlier_one_is_repeated(
    tmp_path: pathlib.Path, act: str, exit_code: int
) -> None:
    text = f"""
    class Pruned(Exception):
        pass

    class Prune(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise Pruned
            if pathlib.Path("repeat").exists():
                once.first({act})

    model.compile("sgd", "mse")
    once = Once("unused", print)
    try:
        model.fit(x, y, epochs=2, batch_size=16, callbacks=[Prune()])
    except Pruned:
        pass
    history = model.fit(x, y, batch_size=16)
    print("said", history.history)
    """
    said = _said(_run(tmp_path, text, *_ONE))
    result = processes.result_of(tmp_path / "run")
    assert (result["status"], result["steps"]) == ("completed", 9)
    (tmp_path / "repeat").touch()
    repeated = _run(tmp_path, text, *_ONE, "--resume=auto")
    assert repeated.returncode == exit_code, repeated.stderr
    assert processes.result_of(tmp_path / "run") == result
    again = _run(tmp_path, text, *_ONE, "--resume=auto")
    assert again.stdout.count("fit 2 of the program was over at step 9") == 1, (
        again.stderr
    )
    assert "nothing to do" not in again.stdout
    assert _said(again) == said != []
    assert processes.result_of(tmp_path / "run") == result


def test_rows_from_before_the_first_checkpoint_are_taken_back(
    tmp_path: pathlib.Path,
) -> None:
    text = """
    log = keras.callbacks.CSVLogger("log.csv", append=True)
    end = Once("unused", kill)
    in_third = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: epoch == 2 and end.first(kill)
    )
    model.compile("sgd", "mse")
    model.fit(x, y, epochs=3, batch_size=16, callbacks=[log, in_third])
    """
    (tmp_path / "log.csv").write_text("epoch,loss\n0,1.5\n")
    assert _run(tmp_path, text, *_ONE).returncode == -9
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 4
    again = _run(tmp_path, text, *_ONE, "--resume=auto")
    assert again.returncode == 0, again.stderr
    rows = (tmp_path / "log.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["epoch", "0", "0", "1", "2"]


def test_a_wish_to_stop_outlives_a_checkpoint(tmp_path: pathlib.Path) -> None:
    text = """
    class Stops(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.stop_training |= epoch == 1

    model.compile("sgd", "mse")
    history = model.fit(x, y, epochs=5, batch_size=16, callbacks=[Stops()])
    print("said", history.epoch, int(model.optimizer.iterations))
    """
    often = "--checkpoint_every_steps=3"
    assert _said(_run(tmp_path, text, *_ONE, often)) == ["said [0, 1] 4"]
    # It is killed when the second epoch has begun, which a resumed `fit` does not do.
    run, killed = tmp_path / "run", tmp_path / "killed"
    processes.copy_up_to(3, run, killed)
    run.rename(tmp_path / "whole")
    killed.rename(run)
    done = _run(tmp_path, text, *_ONE, often, "--resume=auto")
    assert _said(done) == ["said [0, 1] 4"], done.stderr


_OWN_SCHEDULE = """
    share = keras.Variable(0.0, trainable=False)

    class Schedule(keras.callbacks.Callback):
        # It begins with other weights and its own rate, which falls in each batch. The
        # share of the loss grows.
        def __init__(self):
            super().__init__()
            self.batches, self.epochs = 0, 0

        def on_train_begin(self, logs=None):
            weights = self.model.get_weights()
            self.model.set_weights([np.full(w.shape, 0.5) for w in weights])
            self.model.optimizer.learning_rate.assign(0.2)

        def on_epoch_begin(self, epoch, logs=None):
            self.epochs += 1
            share.assign(0.5 + epoch / 4)

        def on_train_batch_begin(self, batch, logs=None):
            self.batches += 1
            rate = self.model.optimizer.learning_rate
            rate.assign(rate.numpy() * 0.75)

    def loss(y, found):
        return share * keras.losses.mean_squared_error(y, found)

    model.compile("sgd", loss)
    one = Schedule()
    epochs = int(os.environ["EPOCHS"])
    history = model.fit(x, y, epochs=epochs, batch_size=16, callbacks=[one])
    print("said", history.history["loss"], one.batches, one.epochs)
    print("said", model.get_weights(), float(model.optimizer.learning_rate))
"""


@pytest.mark.parametrize(
    ("epochs_before", "step"),
    [
        pytest.param(3, 4, id="killed"),
        # At the end of an epoch, where less has begun.
        pytest.param(2, 6, id="more epochs"),
    ],
)
def test_callbacks_begin_with_what_they_had_at_the_checkpoint(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    epochs_before: int,
    step: int,
) -> None:
    flags = (*_ONE, "--checkpoint_every_steps=2", "--set=report.keep_checkpoints=9")
    monkeypatch.setenv("EPOCHS", "3")
    expected = _said(_run(tmp_path, _OWN_SCHEDULE, *flags))
    run, whole = tmp_path / "run", tmp_path / "whole"
    run.rename(whole)
    monkeypatch.setenv("EPOCHS", str(epochs_before))
    if epochs_before == 3:
        processes.copy_up_to(step, whole, run)
    else:
        _run(tmp_path, _OWN_SCHEDULE, *flags)
    monkeypatch.setenv("EPOCHS", "3")
    resumed = _run(tmp_path, _OWN_SCHEDULE, *flags, "--resume=auto")
    assert f"continued at step {step}" in resumed.stdout, resumed.stderr
    assert _said(resumed) == expected


def test_an_earlier_fit_is_not_longer_than_before(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one would put the weights of its checkpoint in place of the new ones."""
    text = """
    model.compile("sgd", "mse")
    model.fit(x, y, epochs=int(os.environ["EPOCHS"]), batch_size=16)
    model.compile("sgd", "mse")
    history = model.fit(x, y, epochs=2, batch_size=16)
    print("said", history.epoch)
    """
    resumed = (*_ONE, "--resume=auto")
    for epochs, flags in ((2, _ONE), (3, resumed)):
        monkeypatch.setenv("EPOCHS", str(epochs))
        done = _run(tmp_path, text, *flags)
        if epochs == 2:
            assert _said(done) == ["said [0, 1]"], done.stderr
    assert done.returncode == 2
    words = "fit number 2 of the program began at step 6, and those before it would end"
    assert f"{words} at step 9" in done.stderr
    # A part of a longer first `fit`, with the checkpoints of the present second one.
    later = tmp_path / "run" / "checkpoints" / "phase-2"
    later.rename(tmp_path / "later")
    assert _run(tmp_path, text, *resumed).returncode == 0
    shutil.rmtree(later)
    (tmp_path / "later").rename(later)
    mixed = _run(tmp_path, text, *resumed)
    assert mixed.returncode == 2
    assert f"{words} at step 9" in mixed.stderr


# The tests above have the training loop of the strategies.
@pytest.mark.exhaustive
def test_a_fit_of_keras_that_a_callback_has_stopped_is_over(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
    class Stops(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 1

    model.compile("sgd", "mse")
    for epochs in (4, int(os.environ["EPOCHS"])):
        history = model.fit(x, y, epochs=epochs, batch_size=16, callbacks=[Stops()])
        print("said", history.history, model.get_weights())
    """
    flags = (*_ONE, "--set=model.keras_fit=true")
    monkeypatch.setenv("EPOCHS", "1")
    said = _said(_run(tmp_path, text, *flags))
    result = processes.result_of(tmp_path / "run")
    assert (len(said), result["steps"]) == (2, 9)
    # The second one was killed after its checkpoint.
    (tmp_path / "run" / "result.json").unlink()
    again = _run(tmp_path, text, *flags, "--resume=auto")
    assert "fit 1 of the program was over at step 6" in again.stdout, again.stderr
    assert _said(again) == said
    assert processes.result_of(tmp_path / "run")["steps"] == 9
    monkeypatch.setenv("EPOCHS", "3")
    longer = _run(tmp_path, text, *flags, "--resume=auto")
    assert longer.returncode == 2
    words = "has done 9 steps of Keras's own fit, which is not continued"
    assert words in longer.stderr


@pytest.mark.parametrize(
    "flags",
    [_ONE, further(("--strategy=multi_worker_mirrored", "--num_workers=2"))],
)
def test_a_generator_is_read_up_to_where_a_callback_has_stopped_a_fit(
    tmp_path: pathlib.Path, flags: tuple[str, ...]
) -> None:
    text = """
    class Stops(keras.callbacks.Callback):
        # At the end of an epoch, and within the third one of the next fit.
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training |= self.model.optimizer.iterations in (6, 14)

    def batches():
        for i in range(100):
            yield x[:16] * i / 100, y[:16]

    model.compile("sgd", "mse")
    held_out = {"validation_data": batches(), "validation_steps": 1}
    stream = {"x": batches(), "steps_per_epoch": 3}
    arrays = {"x": x, "y": y, "batch_size": 16}
    for data, epochs in ((stream, 4), (arrays, 4), (stream, 1)):
        history = model.fit(**data, **held_out, epochs=epochs, callbacks=[Stops()])
        print("said", history.history, model.get_weights())
    """
    said = _said(_run(tmp_path, text, *flags))
    assert len(said) == 3
    # The second one was killed after its last checkpoint.
    (tmp_path / "run" / "result.json").unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "phase-3")
    assert _said(_run(tmp_path, text, *flags, "--resume=auto")) == said


def test_callbacks_of_batches_go_on_counting(tmp_path: pathlib.Path) -> None:
    """Keras callbacks count in attributes that they set in epochs that have begun."""
    text = """
    class Kill(Once):
        def act_in_second_epoch(self, batch, logs):
            if batch == 4 and self.model.optimizer.iterations > 6:
                self.first(kill)

    kill_once = Kill("on_train_end", print)
    kill_once.on_train_batch_end = kill_once.act_in_second_epoch
    profiled = (16, 17) if pathlib.Path("acted").exists() else 0
    callbacks = [
        keras.callbacks.ModelCheckpoint("saved-{epoch}-{batch}.keras", save_freq=4),
        keras.callbacks.TensorBoard(
            "board",
            update_freq=1,
            write_steps_per_second=True,
            profile_batch=profiled,
        ),
        kill_once,
    ]
    model.compile("sgd", "mse")
    model.fit(x, y, epochs=3, batch_size=8, callbacks=callbacks)
    """
    often = (*_ONE, "--checkpoint_every_steps=4")
    first = _run(tmp_path, text, *often)
    assert first.returncode == -9, first.stderr
    resumed = _run(tmp_path, text, *often, "--resume=auto")
    assert resumed.returncode == 0, resumed.stderr
    # Every fourth of 18 batches, six in each epoch.
    saved = {path.name for path in tmp_path.glob("saved-*")}
    assert saved == {f"saved-{name}.keras" for name in ("1-4", "2-2", "2-6", "3-4")}
    steps = read_events(tmp_path / "board" / "train").scalars("batch_loss")
    assert sorted(steps) == [*range(1, 19)]
    # The program may give a resumed run another argument.
    assert (tmp_path / "board" / "train" / "plugins" / "profile").is_dir()


# The next test has fits of one step: the same, but for the step that stops.
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "strategy",
    [_ONE, ("--strategy=multi_worker_mirrored", "--num_workers=2")],
)
def test_a_signal_after_the_last_step_of_a_fit_stops_the_next_one(
    tmp_path: pathlib.Path, strategy: tuple[str, ...]
) -> None:
    text = """
    model.compile("sgd", "mse")
    fit = {"epochs": 2, "batch_size": 16, "verbose": 0}
    model.fit(x, y, callbacks=[Once("on_train_end", stop)], **fit)
    model.fit(x, y, **fit)
    print("said", model.get_weights())
    """
    stopped = _run(tmp_path, text, *strategy)
    assert stopped.returncode == 143, stopped.stderr
    assert ", fit 2 of the program\n" in stopped.stdout
    result = processes.result_of(tmp_path / "run")
    assert (result["status"], result["steps"]) == ("preempted", 7)
    resumed = _run(tmp_path, text, *strategy, "--resume=auto")
    (tmp_path / "run").rename(tmp_path / "was")
    assert _said(resumed) == _said(_run(tmp_path, text, *strategy)) != []


@pytest.mark.parametrize(
    "strategy",
    [_ONE, further(("--strategy=multi_worker_mirrored", "--num_workers=2"))],
)
def test_a_signal_stops_a_program_whose_fits_have_one_step(
    tmp_path: pathlib.Path, strategy: tuple[str, ...]
) -> None:
    """Each signal comes too late for the fit of its time."""
    text = """
    model.compile("sgd", "mse")
    for _ in range(9):
        callbacks = [Once("on_train_end", stop)]
        model.fit(x, y, batch_size=48, verbose=0, callbacks=callbacks)
    print("said", model.get_weights())
    """
    stopped = _run(tmp_path, text, *strategy)
    assert stopped.returncode == 143, stopped.stderr
    assert ", fit 2 of the program\n" in stopped.stdout
    result = processes.result_of(tmp_path / "run")
    assert (result["status"], result["steps"]) == ("preempted", 2)
    resumed = _run(tmp_path, text, *strategy, "--resume=auto")
    (tmp_path / "run").rename(tmp_path / "was")
    assert _said(resumed) == _said(_run(tmp_path, text, *strategy)) != []


@pytest.mark.cluster
def test_a_signal_between_two_fits_ends_all_tasks_at_once(
    tmp_path: pathlib.Path,
) -> None:
    text = """
    import time

    model.compile("sgd", "mse")
    model.fit(x, y, batch_size=48, verbose=0)
    # To the launcher.
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(600)
    """
    workers = ("--strategy=multi_worker_mirrored", "--num_workers=2")
    stopped = _run(tmp_path, text, *workers)
    assert (stopped.returncode, stopped.stderr) == (143, "")
    assert processes.result_of(tmp_path / "run")["status"] == "completed"


# The next test passes over batches of earlier fits and validations as well.
@pytest.mark.exhaustive
def test_generators_continue_where_earlier_fits_and_validations_ended(
    tmp_path: pathlib.Path,
) -> None:
    text = """
    def batches():
        for scale in range(1, 99):
            yield scale * x[:16], y[:16]

    train, held_out = batches(), batches()
    fit = {"epochs": 3, "steps_per_epoch": 2, "verbose": 0}
    fit |= {"validation_data": held_out, "validation_steps": 1}
    model.compile(keras.optimizers.SGD(1e-5), "mse")
    model.fit(train, **fit)
    history = model.fit(train, **fit)
    print("said", history.history, model.get_weights())
    """
    flags = (*_ONE, "--checkpoint_every_steps=2", "--set=report.keep_checkpoints=9")
    expected = _said(_run(tmp_path, text, *flags))
    run, whole = tmp_path / "run", tmp_path / "whole"
    run.rename(whole)
    shutil.copytree(whole, run)
    (run / "result.json").unlink()
    for step in (10, 12):
        shutil.rmtree(run / f"checkpoints/phase-2/step-{step:08}")
    resumed = _run(tmp_path, text, *flags, "--resume=auto")
    assert "continued at step 8" in resumed.stdout, resumed.stderr
    assert _said(resumed) == expected != []


@pytest.mark.parametrize("step", [13, further(8)])
def test_generators_draw_from_one_generator_of_numbers_in_the_same_order(
    step: int, tmp_path: pathlib.Path
) -> None:
    text = """
    def batches(count):
        while True:
            # How many numbers that takes depends on the numbers.
            rows = np.random.permutation(48)[:count]
            yield x[rows] + np.random.normal(size=(count, 1)), y[rows]

    fit = {"epochs": 4, "steps_per_epoch": 2, "verbose": 0}
    fit |= {"validation_data": batches(5), "validation_steps": 3, "validation_freq": 2}
    model.compile("sgd", "mse")
    for _ in range(2):
        history = model.fit(batches(16), **fit)
    print("said", history.history, model.get_weights())
    """
    flags = (*_ONE, "--checkpoint_every_steps=1", "--set=report.keep_checkpoints=9")
    expected = _said(_run(tmp_path, text, *flags))
    run = tmp_path / "run"
    (run / "result.json").unlink()
    # Within the third epoch of the second `fit`, or at the end of the first one.
    for later in range(max(step, 8) + 1, 17):
        shutil.rmtree(run / f"checkpoints/phase-2/step-{later:08}")
    if step == 8:
        shutil.rmtree(run / "checkpoints/phase-2")
    resumed = _run(tmp_path, text, *flags, "--resume=auto")
    assert f"continued at step {step}" in resumed.stdout, resumed.stdout
    assert _said(resumed) == expected != []


def test_numbers_after_a_fit_are_those_that_its_callbacks_have_left(
    tmp_path: pathlib.Path,
) -> None:
    """An export draws none, and a resumed program continues with the same."""
    text = """
    import random

    class Draws(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            np.random.normal()

        def on_epoch_end(self, epoch, logs=None):
            np.random.normal(size=3)

        def on_train_end(self, logs=None):
            np.random.normal()

    model.compile("sgd", "mse")
    state = random.getstate()
    for others in ([], [Once("on_train_end", kill)]):
        callbacks = [Draws(), *others]
        model.fit(x, y, 16, epochs=2, validation_data=(x, y), callbacks=callbacks)
        print("said", np.random.random(), random.getstate() == state)
    """
    flags = (*_ONE, "--export=keras")
    killed = _run(tmp_path, text, *flags)
    assert killed.returncode == -9
    numbers = np.random.RandomState(0)
    numbers.normal(size=(48, 4))
    expected = []
    for _ in range(2):
        numbers.normal(size=1 + 2 * 3 + 1)
        expected.append(f"said {numbers.random_sample()} True")
    assert _said(killed) == expected[:1]
    assert _said(_run(tmp_path, text, *flags, "--resume=auto")) == expected
    assert (tmp_path / "run/export/best.keras").is_file()


# ../run_dir/test_export.py keeps the best model of a run that is continued.
@pytest.mark.exhaustive
def test_the_best_of_a_resumed_fit_is_not_that_of_the_fit_before(
    tmp_path: pathlib.Path,
) -> None:
    text = """
    model.compile("sgd", "mse")
    easy, hard = (0 * x, 0 * y), (9 * x, 9 * y)
    model.fit(x, y, epochs=1, batch_size=16, validation_data=easy)
    fit = {"epochs": 3, "batch_size": 16, "validation_data": hard}
    model.fit(x, y, callbacks=[Once("on_epoch_end", stop)], **fit)
    """
    assert _run(tmp_path, text, *_ONE, "--export=keras").returncode == 143
    resumed = _run(tmp_path, text, *_ONE, "--export=keras", "--resume=auto")
    assert resumed.returncode == 0, resumed.stderr
    best, last = (
        keras.saving.load_model(tmp_path / "run/export" / name).get_weights()
        for name in ("best.keras", "last.keras")
    )
    # Its loss fell until its end, and was never as low as that of the easy examples.
    np.testing.assert_array_equal(best[0], last[0])


def test_a_file_of_an_earlier_fit_that_was_replaced_is_named(
    tmp_path: pathlib.Path,
) -> None:
    text = """
    model.compile("sgd", "mse")
    shared, own, again = (
        keras.callbacks.ModelCheckpoint(f"{name}.weights.h5", save_weights_only=True)
        for name in ("fit-{epoch:02d}", "own", "fit-{epoch:02d}")
    )
    model.fit(x, y, batch_size=16, callbacks=[shared, own])
    once = Once("on_epoch_end", stop)
    model.fit(x, y, epochs=2, batch_size=16, callbacks=[again, once])
    """
    assert _run(tmp_path, text, *_ONE).returncode == 143
    resumed = _run(tmp_path, text, *_ONE, "--resume=auto")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stderr.count("is no longer what ModelCheckpoint wrote") == 1
    assert "warning: fit-{epoch:02d}.weights.h5 is no longer" in resumed.stderr


_CONTINUES_BY_ITSELF = """
    saved, first = sorted(pathlib.Path().glob("saved-*.keras")), 0
    if saved:
        model, first = keras.saving.load_model(saved[-1]), int(saved[-1].stem[-1])
    else:
        model.compile("adam", "mse")

    class Ends(keras.callbacks.Callback):
        # It ends the process once in each of some epochs.
        def on_epoch_end(self, epoch, logs=None):
            mark = pathlib.Path(f"ended-{epoch}")
            if str(epoch) in os.environ["ENDS"] and not mark.exists():
                mark.touch()
                globals()[os.environ["ACT"]]()

    save = keras.callbacks.ModelCheckpoint("saved-{epoch}.keras")
    fit = {"x": x, "y": y, "batch_size": 16, "callbacks": [save, Ends()]}
"""
_WORKERS = ("--strategy=multi_worker_mirrored", "--num_workers=2")
_BY_EPOCH = '"initial_epoch": first, "epochs": 6'


@pytest.mark.parametrize(
    ("call", "strategy", "act", "ends"),
    [
        (_BY_EPOCH, _ONE, "stop", "2"),
        # Six more each time it is started.
        further('"initial_epoch": first, "epochs": first + 6', _ONE, "stop", "24"),
        further(_BY_EPOCH, ("--strategy=mirrored",), "kill", "24"),
        further(_BY_EPOCH, _WORKERS, "stop", "24"),
        # The launcher starts it again.
        further(_BY_EPOCH, _WORKERS, "kill", "24"),
    ],
)
def test_a_program_that_continues_by_itself_trains_all_epochs(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    strategy: tuple[str, ...],
    act: str,
    ends: str,
) -> None:
    text = f"""
{_CONTINUES_BY_ITSELF}
    for call in ({{**fit, {call}}}, {{"x": x, "y": y}}):
        history = model.fit(**call)
        print("said", history.epoch, history.history, model.get_weights())
    """
    alone, ended = tmp_path / "alone", tmp_path / "ended"
    for folder in (alone, ended):
        folder.mkdir()
    flags = (*strategy, "--resume=auto", "--checkpoint_every_steps=2")
    monkeypatch.setenv("ACT", act)
    monkeypatch.setenv("ENDS", "")
    expected = _said(_run(alone, text, *flags))
    assert len(expected) == 2
    monkeypatch.setenv("ENDS", ends)
    for _ in ends:
        done = _run(ended, text, *flags)
        assert done.returncode in (143, -9) or act == "kill", done.stderr
    if done.returncode:
        done = _run(ended, text, *flags)
    assert done.returncode == 0, done.stderr
    assert _said(done)[-2:] == expected
    if call == _BY_EPOCH:
        # No epoch is left, as the program counts, and the second `fit` is the same.
        assert _said(_run(ended, text, *flags)) == expected


@pytest.mark.parametrize(
    ("calls", "ends"),
    [
        ("[{'epochs': 6 - first}]", "2"),
        further("[{'epochs': 1} for _ in range(first, 6)]", "0"),
        further(
            "[{'initial_epoch': i, 'epochs': i + 1} for i in range(first, 6)]", "1"
        ),
    ],
)
def test_a_program_that_continues_by_itself_leaves_no_epoch_out(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, calls: str, ends: str
) -> None:
    text = f"""
{_CONTINUES_BY_ITSELF}
    for call in {calls}:
        model.fit(**fit, **call)
        model.save(f"saved-{{int(model.optimizer.iterations) // 3}}.keras")
    print("said", int(model.optimizer.iterations))
    """
    monkeypatch.setenv("ACT", "stop")
    monkeypatch.setenv("ENDS", ends)
    assert _run(tmp_path, text, *_ONE).returncode == 143
    refused = _run(tmp_path, text, *_ONE, "--resume=auto")
    assert (refused.returncode, refused.stdout.count("said")) == (2, 0), refused.stderr
    assert "continues by itself" in refused.stderr
    (tmp_path / "run").rename(tmp_path / "first")
    assert _said(_run(tmp_path, text, *_ONE)) == ["said 18"]


def test_a_program_that_skips_a_fit_does_not_count_as_completed(
    tmp_path: pathlib.Path,
) -> None:
    text = """
    model.compile("sgd", "mse")
    if not pathlib.Path("first.keras").exists():
        model.fit(x, y, epochs=2, batch_size=16)
        model.save("first.keras")
    model.compile("sgd", "mse")
    callbacks = [Once("on_epoch_end", stop)]
    model.fit(x, y, epochs=2, batch_size=16, callbacks=callbacks)
    """
    assert _run(tmp_path, text, *_ONE).returncode == 143
    done = _run(tmp_path, text, *_ONE, "--resume=auto")
    assert (done.returncode, done.stderr.count("error: ")) == (2, 1), done.stderr
    assert "ended after fit number 1" in done.stderr
    assert processes.result_of(tmp_path / "run")["status"] == "preempted"
