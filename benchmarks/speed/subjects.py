"""All comparisons of the project with its alternatives, and their goals."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks.speed.sides import Measured, Peer, Project
from benchmarks.speed.subject import Subject

_WORKS: Mapping[str, str] = {  # As benchmarks/peers/work.py has them.
    "mlp": "--dataset=synthetic --model=mlp --hidden_units=10 --set=data.input_shape=5 "
    "--num_classes=2",
    "digits": "--dataset=synthetic --model=mlp --hidden_units=512,512 "
    "--set=data.input_shape=784",
    "convnet": "--dataset=synthetic --model=convnet",
    "dense": "--dataset=synthetic --model=mlp --hidden_units=4096,2048 "
    "--set=data.input_shape=3072",
    "transformer": "--model=examples.text_classifier:model "
    "--dataset=examples.text_classifier:reviews",
}
_GLOBAL_BATCH_SIZES = dict.fromkeys(("mlp", "digits", "transformer"), 64)
_GLOBAL_BATCH_SIZES |= dict.fromkeys(("convnet", "dense"), 128)
# For both sides, so that neither gains by its choice.
_STEPS_PER_CALL = {"mlp": 50, "digits": 20, "convnet": 5, "transformer": 20}
# Some seconds, so that several windows of half a second are measured on both sides.
_LOOP_STEPS = {"mlp": 50_000, "digits": 2_000, "convnet": 150, "transformer": 2_000}
_REPLICAS = {1: "--strategy=one_device", 2: "--strategy=mirrored --num_replicas=2"}
_WORKERS = "--strategy=multi_worker_mirrored --num_workers=2"


def _project(work: str, num_steps: int, flags: str = "") -> Project:
    # The other side does not evaluate during training, either.
    shared = (
        f"--global_batch_size={_GLOBAL_BATCH_SIZES[work]} --train_steps={num_steps} "
        "--eval_every_steps=none"
    )
    return _trainer(f"{_WORKS[work]} {shared} {flags}")


def _trainer(flags: str) -> Project:
    return Project(tuple(flags.split()))


def _flags(work: str, num_steps: int, flags: str = "") -> tuple[str, ...]:
    size = _GLOBAL_BATCH_SIZES[work]
    shared = f"--work={work} --global_batch_size={size} --steps={num_steps}"
    return tuple(f"{shared} {flags}".split())


def _loops() -> Iterator[Subject]:
    """Yields subjects of one process, many steps a call on both sides."""
    for work, replicas, goal in (
        *(("mlp", 1, 2.0), ("digits", 1, 1.4), ("transformer", 1, 1.2)),
        *(("convnet", 1, 1.0), ("mlp", 2, 2.5), ("convnet", 2, 1.0)),
    ):
        yield _by_hand(work, replicas, "loop", goal, f"--num_replicas={replicas}")


def _compiled_loops() -> Iterator[Subject]:
    """Yields subjects of one process; XLA compiles the step of the loop by hand."""
    for work in ("mlp", "digits", "transformer"):
        yield _by_hand(work, 1, "compiled-loop", 1.0, "--jit_compile")


def _by_hand(work: str, replicas: int, loop: str, goal: float, flags: str) -> Subject:
    steps, per_call = _LOOP_STEPS[work], _STEPS_PER_CALL[work]
    strategy = {1: "one_device", 2: "mirrored"}[replicas]
    ours = f"{_REPLICAS[replicas]} --steps_per_loop={per_call}"
    theirs = _flags(work, steps, f"{flags} --steps_per_call={per_call}")
    return Subject(
        name=f"{work}-{strategy}-and-{loop}",
        project=_project(work, steps, ours),
        peer=Peer("tensorflow_loop", theirs),
        goal=goal,
    )


def _keras_fit() -> Iterator[Subject]:
    for work, steps, goal in (("mlp", 10_000, 10.0), ("convnet", 150, 1.8)):
        yield Subject(
            name=f"{work}-mirrored-and-keras-fit",
            project=_project(work, steps, _REPLICAS[2]),
            peer=Peer("keras_fit", _flags(work, min(steps, 1_000), "--num_replicas=2")),
            goal=goal,
        )


def _workers() -> Iterator[Subject]:
    """Yields subjects of two processes of one thread each."""
    for work, steps, against_torch, against_loop in (
        ("mlp", 3_000, 1.0, 1.5),
        ("convnet", 150, 1.6, 1.1),
        ("dense", 40, 1.0, 1.3),
    ):
        peer_flags = _flags(work, steps, "--threads=1")
        project = _project(work, steps, _WORKERS)
        yield Subject(
            name=f"{work}-workers-and-torch",
            project=project,
            peer=Peer("torch_ddp", peer_flags, torch_processes=2),
            goal=against_torch,
        )
        yield Subject(
            name=f"{work}-workers-and-loop",
            project=project,
            peer=Peer("tensorflow_loop", peer_flags, num_workers=2),
            goal=against_loop,
        )


def _sharded() -> Iterator[Subject]:
    """Yields subjects of an optimizer's state in shards, against whole copies."""
    whole = f"{_WORKERS} --optimizer=adam"
    for work, steps in (("convnet", 150), ("dense", 40)):
        yield Subject(
            name=f"{work}-sharded-and-whole",
            project=_project(work, steps, f"{whole} --shard_optimizer_state"),
            peer=_project(work, steps, whole),
            goal=1 / 1.05,  # A step may take 1.05 times as long.
        )


def _scaling() -> Iterator[Subject]:
    half = _project("convnet", 150, f"{_REPLICAS[1]} --global_batch_size=64").flags
    yield Subject(
        name="convnet-workers-and-unconnected",
        project=_project("convnet", 150, _WORKERS),
        peer=Project(half, cores=(0, 1)),
        goal=0.92,
    )


def _sparse() -> Iterator[Subject]:
    # A million rows in all columns.
    common = (
        "--strategy=parameter_server --num_workers=2 --model=wide_embedding "
        "--dataset=clicks --set=data.num_columns=8 --set=data.num_categories=125000 "
        "--optimizer=sgd"
    )
    dense = "--train_steps=60 --set=optimizer.sparse_gradients=false"
    yield Subject(
        name="embedding-sparse-and-dense",
        project=_trainer(f"{common} --train_steps=400"),
        peer=_trainer(f"{common} {dense}"),
        goal=20.0,
    )


def _summaries() -> Iterator[Subject]:
    off = "--summary_every_steps=1000000 --set=report.histogram_every_steps=none"
    yield Subject(
        name="convnet-summaries-and-none",
        project=_project("convnet", 300),
        peer=_project("convnet", 300, off),
        goal=0.98,
        ratio=_ratio_of("training_seconds"),
    )


def _ratio_of(name: str) -> Callable[[Measured, Measured], float]:
    """Returns a function that divides a value of the peer by that of the project."""
    return lambda project, peer: getattr(peer, name) / getattr(project, name)


def _start_and_memory() -> Iterator[Subject]:
    yield Subject(
        name="mlp-start",
        project=_project("mlp", 1),
        peer=Peer("tensorflow_loop", _flags("mlp", 1)),
        goal=1 / 1.2,  # At most 1.2 times the time.
        ratio=_ratio_of("first_step_seconds"),
    )
    yield Subject(
        name="convnet-memory",
        project=_project("convnet", 60),
        peer=Peer("tensorflow_loop", _flags("convnet", 60)),
        goal=1 / 1.1,  # At most 1.1 times the memory.
        ratio=_ratio_of("peak_memory_mib"),
    )


def _step_phases() -> Iterator[Subject]:
    """Clocks inside of steps, beside the same steps without."""
    for replicas, strategy in ((1, "one_device"), (2, "mirrored")):
        clocks = f"{_REPLICAS[replicas]} --set=report.step_phases=true"
        yield Subject(
            name=f"convnet-{strategy}-and-step-phases",
            project=_project("convnet", 400, clocks),
            peer=_project("convnet", 400, _REPLICAS[replicas]),
            goal=0.97,  # They may cost 3 % of a step.
        )


SUBJECTS: Sequence[Subject] = (
    *_loops(),
    *_compiled_loops(),
    *_keras_fit(),
    *_workers(),
    *_sharded(),
    *_scaling(),
    *_sparse(),
    *_summaries(),
    *_start_and_memory(),
    *_step_phases(),
)
