"""All comparisons of the project with its alternatives, and their goals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.speed.data import write_images, write_records
from benchmarks.speed.sides import Measured, Peer, Project, Unconnected
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
    strategies = {1: "one_device", 2: "mirrored"}
    return [
        _by_hand(work, strategies[count], "loop", goal, f"--num_replicas={count}")
        for (work, count), goal in goals.items()
    ]


def _compiled_loops() -> Sequence[Subject]:
    """One process; the loop by hand has its step compiled by XLA."""
    return [
        _by_hand(work, "one_device", "compiled-loop", 1.0, "--jit_compile")
        for work in ("mlp", "digits", "transformer")
    ]


def _by_hand(
    work: str, strategy: str, name: str, goal: float, *peer_flags: str
) -> Subject:
    steps, per_call = _LOOP_STEPS[work], _STEPS_PER_CALL[work]
    ours = (*_replicas(strategy), f"--steps_per_loop={per_call}")
    theirs = (*peer_flags, f"--steps_per_call={per_call}")
    return Subject(
        name=f"{work}-{strategy}-and-{name}",
        project=_project(work, steps, *ours),
        peer=Peer("tensorflow_loop", _flags(work, steps, *theirs)),
        goal=goal,
    )


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


def _script() -> Sequence[Subject]:
    common = (*_replicas("mirrored"), "--global_batch_size=64", "--train_steps=4000")
    by_flags = ("--model=mlp", "--dataset=digits", "--eval_every_steps=none")
    return [
        Subject(
            name="mlp-script-and-flags",
            project=Project(("--script=benchmarks/speed/digits_program.py", *common)),
            peer=Project((*by_flags, *common)),
            # At most 2 % of a step.
            goal=0.98,
        )
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


def _sharded() -> Sequence[Subject]:
    """The optimizer's state in parts, beside the whole of it on both workers."""
    flags = ("--strategy=multi_worker_mirrored", "--num_workers=2", "--optimizer=adam")
    return [
        Subject(
            name=f"{work}-sharded-and-whole",
            project=_project(work, steps, *flags, "--shard_optimizer_state"),
            peer=_project(work, steps, *flags),
            # A step may take 1.05 times as long.
            goal=1 / 1.05,
        )
        for work, steps in (("convnet", 150), ("dense", 40))
    ]


def _sparse() -> Sequence[Subject]:
    common = (
        "--strategy=parameter_server",
        "--num_workers=2",
        "--model=wide_embedding",
        "--dataset=clicks",
        "--set=data.num_columns=8",
        # In each column: a million rows in all.
        "--set=data.num_categories=125000",
        "--optimizer=sgd",
    )
    return [
        Subject(
            name="embedding-sparse-and-dense",
            project=Project((*common, "--train_steps=400")),
            peer=Project(
                (*common, "--train_steps=60", "--set=optimizer.sparse_gradients=false")
            ),
            goal=20.0,
        )
    ]


def _summaries() -> Sequence[Subject]:
    work = _project("convnet", 300)
    off = ("--summary_every_steps=1000000", "--set=report.histogram_every_steps=none")
    return [
        Subject(
            name="convnet-summaries-and-none",
            project=work,
            peer=Project((*work.flags, *off)),
            goal=0.98,
            ratio=_by_training_time,
        )
    ]


def _by_training_time(project: Measured, peer: Measured) -> float:
    return (peer.training_seconds or 0.0) / (project.training_seconds or 1.0)


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


def _input() -> Sequence[Subject]:
    """Fractions of the time spent waiting for input, beside data held in memory."""
    images = ("--dataset=cifar10", "--data_path={folder}", "--train_steps=150")
    records = (
        "--dataset=tfrecord",
        "--data_path={folder}/train.tfrecord",
        "--eval_data_path={folder}/train.tfrecord",
    )
    works = (
        (
            "images",
            ("--model=convnet", *images),
            write_images,
            ("--set=data.augmentation=false",),
        ),
        (
            "records",
            ("--model=mlp", *records, "--sharding=example", "--train_steps=3000"),
            write_records,
            ("--sharding=exact",),
        ),
    )
    return [
        Subject(
            name=f"{name}-input",
            project=Project(flags, write_data=write_data),
            peer=Project((*flags, *from_memory), write_data=write_data),
            # It may wait for 2 % of its time.
            goal=1.0,
            ratio=lambda project, peer: 0.02 / max(project.input_share or 0.0, 1e-6),
        )
        for name, flags, write_data, from_memory in works
    ]


SUBJECTS: Sequence[Subject] = (
    *_loops(),
    *_compiled_loops(),
    *_keras_fit(),
    *_script(),
    *_workers(),
    *_parameter_servers(),
    *_scaling(),
    *_sharded(),
    *_sparse(),
    *_summaries(),
    *_start(),
    *_memory(),
    *_step_phases(),
    *_input(),
)
