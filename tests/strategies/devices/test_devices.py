"""Checks that devices are chosen, listed and configured as requested, or refused."""

import ctypes
import json
import pathlib
import re
from typing import Any

import keras
import pytest
import tensorflow as tf

import models
from models.classification import classifier
from strategies import registry
from strategies.common.errors import UsageError
from strategies.config import StrategyConfig
from strategies.devices.assignment import (
    configure_devices,
    describe,
    take_devices,
)
from strategies.devices.config import DeviceConfig
from strategies.devices.gpu import load_driver, memory_limit_mib, total_memory_mib
from strategies.devices.parsing import DeviceChoice, parse_devices
from tests import processes
from tests.conformance.harness import in_one_process, small_config
from tests.event_files import read_events
from tests.markers import chosen
from trainers.config.config import Config
from trainers.experiments.arms import Arm, arms_of
from trainers.experiments.verify.arms import reference_of
from trainers.main import main
from trainers.modes.devices import gpu_in_words

NO_GPU = pytest.mark.skipif(
    bool(tf.config.list_physical_devices("GPU")), reason="is about a missing GPU"
)
SMALL_RUN = (
    *("--model=mlp", "--hidden_units=8", "--train_steps=3"),
    *("--set=report.histogram_every_steps=none", *processes.NO_EVALUATION),
    # A compilation takes longer than these steps.
    "--jit_compile=off",
)


def several_replicas() -> list[str]:
    return [n for n in in_one_process() if registry.traits(n).max_replicas is None]


# The chosen devices


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("gpu:0", DeviceChoice(gpus=(0,))),
        ("gpu:2,gpu:0", DeviceChoice(gpus=(0, 2))),
        ("GPU:1", DeviceChoice(gpus=(1,))),
        ("cpu:4", DeviceChoice(num_cpus=4)),
    ],
)
def test_a_list_of_devices_is_read(listed: str, expected: DeviceChoice) -> None:
    choice = parse_devices(listed.split(","))
    assert choice == expected
    assert parse_devices(str(choice).removeprefix("--devices=").split(",")) == choice


@pytest.mark.parametrize("strategy", several_replicas())
def test_every_strategy_takes_the_devices_that_are_chosen(strategy: str) -> None:
    config = small_config(strategy=strategy, devices=("cpu:3",)).strategy
    devices = registry.load(strategy).create(config, cluster=None).devices  # type: ignore[arg-type]
    numbers = [tf.DeviceSpec.from_string(device).device_index for device in devices]
    assert numbers == [0, 1, 2]
    assert {tf.DeviceSpec.from_string(d).device_type for d in devices} == {"CPU"}


def devices_of(config: StrategyConfig) -> list[str]:
    return take_devices(config.device_choice, config.num_replicas, 2)


class Gpus:
    """Replacements of TensorFlow's functions, which record settings of missing GPUs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int):
        self.limits: dict[str, list[float]] = {}
        self.growing: set[str] = set()
        self.visible: list[str] | None = None
        found = [
            tf.config.PhysicalDevice(f"/physical_device:GPU:{number}", "GPU")
            for number in range(count)
        ]
        listed = tf.config.list_physical_devices
        for name, replacement in {
            "list_physical_devices": lambda k: found if k == "GPU" else listed(k),
            "set_logical_device_configuration": self._limit,
            "set_visible_devices": self._show,
            "get_visible_devices": lambda _: [
                gpu
                for gpu in found
                if self.visible is None or gpu.name[-5:] in self.visible
            ],
            "experimental.set_memory_growth": self._grow,
        }.items():
            monkeypatch.setattr(f"tensorflow.config.{name}", replacement)
        monkeypatch.setattr(
            "strategies.devices.assignment.total_memory_mib", lambda: (1000,) * count
        )

    def _limit(self, gpu: Any, parts: list[Any]) -> None:
        self.limits[gpu.name[-5:]] = [part.memory_limit for part in parts]

    def _show(self, gpus: list[Any], kind: str) -> None:
        assert kind == "GPU"
        self.visible = [gpu.name[-5:] for gpu in gpus]

    def _grow(self, gpu: Any, grows: bool) -> None:
        assert grows
        self.growing.add(gpu.name[-5:])


def test_nccl_needs_replicas_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    Gpus(monkeypatch, 1)
    config = small_config(
        strategy="mirrored", devices=("cpu:2",), cross_device_reduction="nccl"
    ).strategy
    with pytest.raises(UsageError, match=r"reduction=nccl .* on the CPU"):
        registry.load("mirrored").create(config, cluster=None)  # type: ignore[arg-type]


def test_only_gpus_that_are_chosen_are_seen_and_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus = Gpus(monkeypatch, 3)
    config = small_config(strategy="tower", devices=("gpu:0", "gpu:2")).strategy
    configure_devices(config, DeviceConfig(memory_fraction=0.25))
    assert gpus.limits == {"GPU:0": [250], "GPU:2": [250]}
    # TensorFlow numbers the visible GPUs from 0.
    devices = devices_of(config)
    assert devices == ["/device:GPU:0", "/device:GPU:1"]
    assert gpus.visible == ["GPU:0", "GPU:2"]
    assert describe(devices) == "GPU:0, GPU:1 (gpu:2)"


def test_the_cpu_is_chosen_by_hiding_every_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Gpus(monkeypatch, 2)
    config = small_config(strategy="mirrored", devices=("cpu:3",)).strategy
    assert len(devices_of(config)) == 3
    assert gpus.visible == []


def test_without_a_choice_every_gpu_is_used_and_none_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus = Gpus(monkeypatch, 3)
    configure_devices(small_config().strategy, DeviceConfig(memory_growth=True))
    assert gpus.growing == {"GPU:0", "GPU:1", "GPU:2"}
    for strategy, expected in {"tower": 3, "mirrored": 3}.items():
        config = small_config(strategy=strategy).strategy
        assert len(devices_of(config)) == expected
    assert gpus.visible is None
    with pytest.raises(UsageError, match="--num_replicas=4 needs as many devices, and"):
        devices_of(small_config(strategy="tower", num_replicas=4).strategy)


def test_stages_of_a_model_are_on_the_devices_that_are_chosen() -> None:
    """A strategy that splits its one replica counts devices by another setting."""
    choice = DeviceChoice(num_cpus=3)
    expected = [f"/device:CPU:{number}" for number in range(3)]
    assert take_devices(choice, None, 2, "--pipeline_stages") == expected
    assert take_devices(choice, 3, 2, "--pipeline_stages") == expected
    with pytest.raises(UsageError, match=r"cpu:3 names 3 .* --pipeline_stages=2 asks"):
        take_devices(choice, 2, 2, "--pipeline_stages")
    with pytest.raises(UsageError, match="--pipeline_stages=999 is more than the"):
        take_devices(DeviceChoice(), 999, 2, "--pipeline_stages")


@pytest.mark.parametrize("stages", [("2",), ("predictions",)])
def test_soft_placement_leaves_no_stage_out(
    monkeypatch: pytest.MonkeyPatch, stages: tuple[str, ...]
) -> None:
    Gpus(monkeypatch, 1)
    config = small_config(
        strategy="model_parallel",
        devices=("gpu:0", "gpu:1"),
        pipeline_stages=stages,
        soft_placement=True,
    ).strategy
    with pytest.raises(UsageError, match="--pipeline_stages=2 needs as many devices"):
        registry.load("model_parallel").create(config, cluster=None)  # type: ignore[arg-type]


def test_of_missing_gpus_the_others_are_used_if_that_was_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Gpus(monkeypatch, 2)
    chosen = {"strategy": "tower", "devices": ("gpu:1", "gpu:2")}
    with pytest.raises(UsageError, match=r"names gpu:2, and .* has gpu:0, gpu:1 and"):
        devices_of(small_config(**chosen).strategy)
    for num_replicas in (None, 2):
        soft = small_config(**chosen, soft_placement=True, num_replicas=num_replicas)
        assert devices_of(soft.strategy) == ["/device:GPU:0"]


# Limits of the memory of GPUs


class Driver:
    """A replacement of NVIDIA's library: C functions that write to pointers."""

    def __init__(self, *num_bytes: int, failing: str = ""):
        integer, size = ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_size_t)

        def code(name: str) -> int:
            return 303 if name == failing else 0

        def count(written: Any) -> int:
            written[0] = len(num_bytes)
            return code("cuDeviceGetCount")

        def get(written: Any, ordinal: int) -> int:
            # The handle of a GPU may differ from its number.
            written[0] = ordinal + 10
            return code("cuDeviceGet")

        def total(written: Any, device: int) -> int:
            written[0] = num_bytes[device - 10]
            return code("cuDeviceTotalMem_v2")

        number = ctypes.c_int
        self.cuInit = ctypes.CFUNCTYPE(number, ctypes.c_uint)(lambda _: code("cuInit"))
        self.cuDeviceGetCount = ctypes.CFUNCTYPE(number, integer)(count)
        self.cuDeviceGet = ctypes.CFUNCTYPE(number, integer, number)(get)
        self.cuDeviceTotalMem_v2 = ctypes.CFUNCTYPE(number, size, number)(total)


def test_the_driver_tells_the_memory_of_every_gpu() -> None:
    # 80 GiB exceed the range of 32 bits.
    assert total_memory_mib(Driver(80 << 30, 4 << 20)) == (80 * 1024, 4)
    assert total_memory_mib(Driver()) == ()


@pytest.mark.parametrize(
    "failing", ["cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceTotalMem_v2"]
)
def test_a_driver_that_fails_tells_nothing(failing: str) -> None:
    assert total_memory_mib(Driver(1 << 30, failing=failing)) == ()


@NO_GPU
def test_without_a_gpu_nothing_is_known_of_its_memory() -> None:
    assert total_memory_mib(load_driver()) == ()


@pytest.mark.parametrize(
    ("settings", "totals", "expected"),
    [
        ({"memory_fraction": 0.5}, (4000, 1001), 500),
        ({"memory_fraction": 1.0}, (4000, 1001), 1001),
        ({"memory_fraction": 1e-9}, (4000, 1001), 1),
        ({"memory_limit_mib": 1001}, (4000, 1001), 1001),
        ({"memory_limit_mib": 9999}, (), 9999),
    ],
)
def test_a_limit_is_of_the_gpu_it_is_for(
    settings: dict[str, Any], totals: tuple[int, ...], expected: int
) -> None:
    assert memory_limit_mib(DeviceConfig(**settings), 1, totals) == expected


@pytest.mark.parametrize(
    ("settings", "totals", "expected"),
    [
        (
            {"memory_fraction": 0.5},
            (),
            "--set=device.memory_fraction=0.5 needs the whole memory",
        ),
        ({"memory_limit_mib": 1002}, (4000, 1001), "more than the 1,001 MiB of gpu:1"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(
    settings: dict[str, Any], totals: tuple[int, ...], expected: str
) -> None:
    with pytest.raises(UsageError, match=expected):
        memory_limit_mib(DeviceConfig(**settings), 1, totals)


# The list of devices


def test_a_gpu_in_words() -> None:
    details = {"device_name": "NVIDIA A100", "compute_capability": (8, 0)}
    assert gpu_in_words(details, 81920) == (
        "81,920 MiB of memory, compute capability 8.0, NVIDIA A100"
    )
    assert gpu_in_words({}, None) == (
        "memory unknown, compute capability unknown, name unknown"
    )


@NO_GPU
@pytest.mark.slow
def test_devices_are_listed_and_nothing_is_written(tmp_path: pathlib.Path) -> None:
    done = processes.run(
        *("--mode=devices", "--strategy=tower", "--devices=gpu:4,gpu:7,gpu:1"),
        *(
            "--soft_placement",
            "--set=threads.intra_op_threads=3",
            "--set=threads.inter_op_threads=5",
        ),
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (warning,) = done.stderr.splitlines()
    assert warning == (
        "warning: gpu:1, gpu:4, gpu:7 of --devices is not on this machine: "
        "--soft_placement uses the CPU."
    )
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    expected = [
        r"machine   \d+ of \d+ cores, .+",
        r"physical  cpu    [\d,]+ MiB of memory",
        r" {10}no GPU",
        r"strategy  tower",
        r"replicas  3, on the CPU split into 3 logical devices \(no GPU found\)",
        r"logical   /device:CPU:0  replica 0",
        r" {10}/device:CPU:1  replica 1",
        r" {10}/device:CPU:2  replica 2",
        r"memory    of GPUs: nearly all at once; .*",
        r"placement operations may move to another device, and so may replicas",
        r"threads   for one operation: 3",
        r" {10}for operations side by side: 5",
    ]
    for line, pattern in zip(lines, expected, strict=True):
        assert re.fullmatch(pattern, line), line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("strategy", registry.names())
def test_devices_are_listed_for_every_strategy(
    strategy: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["main", "--mode=devices", f"--strategy={strategy}"]) == 0
    printed = capfd.readouterr().out
    assert f"strategy  {strategy}\n" in printed
    assert max(map(len, printed.splitlines())) <= 80


# Training on chosen devices


@NO_GPU
def test_training_goes_on_without_gpus_if_that_was_allowed(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    arguments = ("--strategy=tower", "--devices=gpu:0,gpu:3", "--soft_placement")
    assert main(["main", *SMALL_RUN, *arguments, f"--run_dir={run}"]) == 0
    captured = capfd.readouterr()
    assert "tower: 2 replicas on the CPU split into 2" in captured.out
    assert captured.err.startswith("warning: gpu:0, gpu:3 of --devices is not on this")
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    assert config["strategy"]["devices"] == ["gpu:0", "gpu:3"]
    assert config["strategy"]["soft_placement"] is True


def test_a_run_is_evaluated_on_other_devices(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["main", *SMALL_RUN, f"--run_dir={run}"]) == 0
    # The configuration becomes that of a run that was trained with GPUs.
    path = run / "config.json"
    config = json.loads(path.read_text("utf-8"))
    config["device"]["memory_growth"] = True
    path.write_text(json.dumps(config), encoding="utf-8")
    arguments = ("--strategy=tower", "--devices=cpu:3", f"--run_dir={run}")
    assert main(["main", "--mode=evaluate", *arguments]) == 0
    assert "eval  | step 3 | " in capfd.readouterr().out


def on_a_gpu(data: Any, settings: Any) -> keras.Model:
    """Builds a model with a layer that names a device, as models of tutorials do."""

    class Placed(keras.layers.Layer):
        def call(self, inputs: tf.Tensor) -> tf.Tensor:
            with tf.device("/gpu:0"):
                return inputs + 1

    images = keras.Input(data.input_shape)
    flat = keras.layers.Flatten()(Placed()(images))
    return keras.Model(images, keras.layers.Dense(data.num_classes)(flat))


@NO_GPU
@pytest.mark.parametrize("strategy", chosen(in_one_process(), ["tower"]))
def test_a_model_that_names_a_missing_device_is_one_line_without_soft_placement(
    strategy: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(models, "load", lambda name: classifier(on_a_gpu))
    arguments = ["main", *SMALL_RUN, f"--strategy={strategy}"]
    assert main([*arguments, f"--run_dir={tmp_path}/soft"]) == 0
    capfd.readouterr()
    assert main([*arguments, "--nosoft_placement", f"--run_dir={tmp_path}/hard"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: an operation is to run on /")
    assert "GPU:0, which it cannot: this process has /device:CPU:0, " in line


@pytest.mark.parametrize("strategy", chosen(in_one_process(), ["mirrored"]))
def test_every_strategy_trains_where_nothing_may_move(
    strategy: str, tmp_path: pathlib.Path
) -> None:
    run = tmp_path / "run"
    arguments = (*SMALL_RUN, "--nosoft_placement", f"--run_dir={run}")
    assert main(["main", f"--strategy={strategy}", *arguments]) == 0
    assert not tf.config.get_soft_device_placement()
    result = processes.result_of(run)
    assert (result["strategy"], result["status"]) == (strategy, "completed")
    assert result["steps"] == 3
    assert result["weights_sha256"] != result["initial_weights_sha256"]


def lines_of(run: pathlib.Path, heading: str) -> list[list[str]]:
    """Returns the cells of a table in the log of a run, header included."""
    text = (run / "logs" / "chief-0.log").read_text(encoding="utf-8")
    (found,) = re.findall(rf" {heading}\n(.*?)(?=\n\d{{4}}-|\Z)", text, re.S)
    return [line.split(maxsplit=2) for line in found.splitlines()]


@pytest.mark.parametrize("strategy", chosen(several_replicas(), ["tower"]))
def test_the_device_of_every_operation_and_variable_is_written(
    strategy: str, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    digests = []
    for flag in ("--nolog_device_placement", "--log_device_placement"):
        run = tmp_path / flag
        arguments = (*SMALL_RUN, f"--strategy={strategy}", f"--run_dir={run}", flag)
        assert main(["main", "--devices=cpu:2", *arguments]) == 0
        digests.append(processes.result_of(run)["weights_sha256"])
    assert digests[0] == digests[1], "logging has changed the training"
    header, *operations = lines_of(run, "placement of operations")
    assert header == ["device", "type", "operation"]
    of_devices = {name: [o for o in operations if o[0] == name] for name in DEVICES}
    assert sum(map(len, of_devices.values())) == len(operations)
    for found in of_devices.values():
        # Two layers have a product forward and two backward each; the gradient of the
        # images is not computed.
        assert len([o for o in found if "MatMul" in o[1]]) >= 5
    _, *variables = lines_of(run, "placement of variables")
    names = [row[-1].split()[-1] for row in variables]
    assert "hidden_1/kernel" in names
    printed = capfd.readouterr().out
    counts = ", ".join(f"{d} {len(found):,}" for d, found in of_devices.items())
    assert f"placement {len(operations):,} operations ({counts})" in printed
    assert f"{len(variables)} variables, listed in {run}/logs/chief-0.log" in printed
    (point,) = read_events(run / "tb" / "train").points["placement"]
    shown = point.value.item().decode().splitlines()
    assert len(shown) == 2 + len(operations)
    assert shown[2].strip("| ").split(" | ") == operations[0]


DEVICES = ("CPU:0", "CPU:1")


# Devices in other modes


def arm_named(name: str, arms: tuple[Arm, ...]) -> Config:
    (found,) = (arm.config for arm in arms if arm.name == name)
    return found


def test_arms_have_what_they_can_of_the_devices() -> None:
    strategies = ("one_device", "tower", "parameter_server")
    compared = small_config(
        mode="compare",
        model="mlp",
        strategies=strategies,
        strategy="tower",
        devices=("cpu:4",),
    )
    arms = arms_of(compared)
    assert arm_named("one_device", arms).strategy.devices == ("cpu:1",)
    assert arm_named("tower", arms).strategy.devices == ("cpu:4",)
    assert arm_named("parameter_server", arms).strategy.devices is None
    verified = compared.replace(mode="verify")
    assert reference_of(verified).config.strategy.devices == ("cpu:1",)


def test_arms_have_what_they_can_of_the_settings_of_devices() -> None:
    compared = small_config(
        mode="compare",
        model="mlp",
        strategies=("one_device", "tower", "parameter_server"),
        strategy="tower",
        devices=("gpu:1", "gpu:2"),
        memory_growth=True,
        log_device_placement=True,
    )
    arms = arms_of(compared)
    one_device = arm_named("one_device", arms)
    assert one_device.strategy.devices == ("gpu:1",)
    assert one_device.device == compared.device
    assert arm_named("parameter_server", arms).device == DeviceConfig()


@NO_GPU
def test_the_doctor_tells_of_a_missing_device_once(
    capfd: pytest.CaptureFixture[str],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ("--strategy=tower", "--devices=gpu:3")
    assert main(["main", "--mode=doctor", *arguments]) == 2
    (problem,) = problems(capfd.readouterr().out)
    assert problem.startswith("problem: --devices=gpu:3 names gpu:3, and this machine")
    assert main(["main", "--mode=doctor", *arguments, "--soft_placement"]) == 0
    printed = capfd.readouterr().out
    assert "warning: gpu:3 of --devices is not on this machine" in printed
    assert list(tmp_path.iterdir()) == []


def problems(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if line.startswith("problem:")]
