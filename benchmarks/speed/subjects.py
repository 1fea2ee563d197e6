"""All comparisons of the project with its alternatives, and their goals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.speed.sides import Peer, Project, Unconnected
from benchmarks.speed.subject import Subject

# As benchmarks/peers/work.py has them.
_WORKS: Mapping[str, tuple[str, ...]] = {
    "mlp": (
        "--dataset=synthetic",
        "--model=mlp",
        "--hidden_units=10",
        "--set=data.input_shape=5",
        "--num_classes=2",
    ),
    "digits": (
        "--dataset=synthetic",
        "--model=mlp",
        "--hidden_units=512,512",
        "--set=data.input_shape=784",
    ),
    "convnet": ("--dataset=synthetic", "--model=convnet"),
    "dense": (
        "--dataset=synthetic",
        "--model=mlp",
        "--hidden_units=4096,2048",
        "--set=data.input_shape=3072",
    ),
    "transformer": (
        "--model=examples.text_classifier:model",
        "--dataset=examples.text_classifier:reviews",
    ),
}
_GLOBAL_BATCH_SIZES = {
    "mlp": 64,
    "digits": 64,
    "convnet": 128,
    "dense": 128,
    "transformer": 64,
}
# For both sides, so that neither gains by its choice.
_STEPS_PER_CALL = {"mlp": 50, "digits": 20, "convnet": 5, "transformer": 20}
_LOOP_STEPS = {"mlp": 10_000, "digits": 2_000, "convnet": 150, "transformer": 2_000}


def _project(work: str, num_steps: int, *flags: str) -> Project:
    return Project(
        (
            *_WORKS[work],
            f"--global_batch_size={_GLOBAL_BATCH_SIZES[work]}",
            f"--train_steps={num_steps}",
            # The other side does not evaluate during training, either.
            "--eval_every_steps=none",
            *flags,
        )
    )


def _flags(work: str, num_steps: int, *flags: str) -> tuple[str, ...]:
    return (
        f"--work={work}",
        f"--global_batch_size={_GLOBAL_BATCH_SIZES[work]}",
        f"--steps={num_steps}",
        *flags,
    )


def _loops() -> Sequence[Subject]:
    """One process, many steps a call on both sides."""
    goals = {
        ("mlp", 1): 2.0,
        ("digits", 1): 1.4,
        ("transformer", 1): 1.2,
        ("convnet", 1): 1.0,
        ("mlp", 2): 2.5,
        ("convnet", 2): 1.0,
    }
    found = []
    for (work, replicas), goal in goals.items():
        steps = _LOOP_STEPS[work]
        per_call = _STEPS_PER_CALL[work]
        strategy = {1: "one_device", 2: "mirrored"}[replicas]
        found.append(
            Subject(
                name=f"{work}-{strategy}-and-loop",
                project=_project(
                    work, steps, *_replicas(strategy), f"--steps_per_loop={per_call}"
                ),
                peer=Peer(
                    "tensorflow_loop",
                    _flags(
                        work,
                        steps,
                        f"--num_replicas={replicas}",
                        f"--steps_per_call={per_call}",
                    ),
                ),
                goal=goal,
            )
        )
    return found


def _compiled_loops() -> Sequence[Subject]:
    """One process; the loop by hand has its step compiled by XLA."""
    return [
        Subject(
            name=f"{work}-one_device-and-compiled-loop",
            project=_project(
                work,
                _LOOP_STEPS[work],
                *_replicas("one_device"),
                f"--steps_per_loop={_STEPS_PER_CALL[work]}",
            ),
            peer=Peer(
                "tensorflow_loop",
                _flags(
                    work,
                    _LOOP_STEPS[work],
                    f"--steps_per_call={_STEPS_PER_CALL[work]}",
                    "--jit_compile",
                ),
            ),
            goal=1.0,
        )
        for work in ("mlp", "digits", "transformer")
    ]


def _replicas(strategy: str) -> tuple[str, ...]:
    count = ("--num_replicas=2",) if strategy == "mirrored" else ()
    return (f"--strategy={strategy}", *count)


def _keras_fit() -> Sequence[Subject]:
    return [
        Subject(
            name=f"{work}-mirrored-and-keras-fit",
            project=_project(work, steps, *_replicas("mirrored")),
            peer=Peer("keras_fit", _flags(work, min(steps, 1_000), "--num_replicas=2")),
            goal=goal,
        )
        for work, steps, goal in (("mlp", 10_000, 10.0), ("convnet", 150, 1.8))
    ]


def _workers() -> Sequence[Subject]:
    """Two processes of one thread each."""
    flags = ("--strategy=multi_worker_mirrored", "--num_workers=2")
    works = (
        # Work, steps, goals against PyTorch and against a loop.
        ("mlp", 3_000, 1.0, 1.5),
        ("convnet", 150, 1.6, 1.1),
        ("dense", 40, 1.0, 1.3),
    )
    found = []
    for work, steps, against_torch, against_loop in works:
        peer_flags = _flags(work, steps, "--threads=1")
        project = _project(work, steps, *flags)
        found += [
            Subject(
                name=f"{work}-workers-and-torch",
                project=project,
                peer=Peer("torch_ddp", peer_flags, torch_processes=2),
                goal=against_torch,
            ),
            Subject(
                name=f"{work}-workers-and-loop",
                project=project,
                peer=Peer("tensorflow_loop", peer_flags, cluster=(("worker", 2),)),
                goal=against_loop,
            ),
        ]
    return found


def _parameter_servers() -> Sequence[Subject]:
    flags = ("--strategy=parameter_server", "--update=async", "--num_workers=2")
    cluster = (("chief", 1), ("worker", 2), ("ps", 1))
    found = []
    for work, steps, goal in (("mlp", 3_000, 2.5), ("convnet", 200, 1.25)):
        # The batch of one worker's update.
        size = "--global_batch_size=64"
        found.append(
            Subject(
                name=f"{work}-parameter-server-and-loop",
                project=_project(work, steps, *flags, size),
                peer=Peer(
                    "coordinator_loop", (*_flags(work, steps), size), cluster=cluster
                ),
                goal=goal,
            )
        )
    return found


def _scaling() -> Sequence[Subject]:
    alone = ("--strategy=one_device", "--global_batch_size=64")
    half = _project("convnet", 150, *alone).flags
    return [
        Subject(
            name="convnet-workers-and-unconnected",
            project=_project(
                "convnet", 150, "--strategy=multi_worker_mirrored", "--num_workers=2"
            ),
            peer=Unconnected((Project(half, cores=(0,)), Project(half, cores=(1,)))),
            goal=0.92,
        )
    ]


def _start() -> Sequence[Subject]:
    return [
        Subject(
            name="mlp-start",
            project=_project("mlp", 1),
            peer=Peer("tensorflow_loop", _flags("mlp", 1)),
            # At most 1.2 times the time.
            goal=1 / 1.2,
            ratio=lambda project, peer: (
                (peer.first_step_seconds or 0.0) / (project.first_step_seconds or 1.0)
            ),
        )
    ]


def _memory() -> Sequence[Subject]:
    steps = 60
    return [
        Subject(
            name="convnet-memory",
            project=_project("convnet", steps),
            peer=Peer("tensorflow_loop", _flags("convnet", steps)),
            # At most 1.1 times the memory.
            goal=1 / 1.1,
            ratio=lambda project, peer: peer.peak_memory_mib / project.peak_memory_mib,
        )
    ]


def _step_phases() -> Sequence[Subject]:
    """Clocks inside of steps, beside the same steps without."""
    return [
        Subject(
            name=f"convnet-{strategy}-and-step-phases",
            project=_project(
                "convnet", 400, *_replicas(strategy), "--set=report.step_phases=true"
            ),
            peer=_project("convnet", 400, *_replicas(strategy)),
            # They may cost 3 % of a step.
            goal=0.97,
        )
        for strategy in ("one_device", "mirrored")
    ]


SUBJECTS: Sequence[Subject] = (
    *_loops(),
    *_compiled_loops(),
    *_keras_fit(),
    *_workers(),
    *_parameter_servers(),
    *_scaling(),
    *_start(),
    *_memory(),
    *_step_phases(),
)
