"""Causes that make steps slow, each found by a rule over the shares of the time."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from strategies.common.text import every
from trainers.config.config import Config
from trainers.experiments.explain.breakdown import Breakdown

# Numbers at which the rules decide, each with the reason for it.
LIMITS: Mapping[str, float] = {
    # Less than a fifth of the time is not worth a change.
    "share": 0.2,
    # Threads of idle machines wait 1 to 25 % for a core.
    "cpu_wait": 0.4,
    # Programs at rest use less than a tenth of a core.
    "other_busy_cores": 0.3,
    # Two equal replicas are each slowest half of the time.
    "caused_wait": 0.75,
    # Equal replicas on shared cores differ by up to a third.
    "slower": 1.5,
    # Loopback brings 250 MB/s, 1 Gbit/s brings 110.
    "bytes_per_second": 50e6,
    # Below, a message costs its latency, not its bytes.
    "wire_bytes": 1 << 20,
    # A replica's usual shard is 16 examples or more.
    "examples": 8,
    # A model of 20 usual layers has 40 variables.
    "variables": 100,
    # Smaller ones take a message's or operation's fixed cost.
    "variable_bytes": 16 << 10,
    # An operation that computes nothing takes 2 to 10 microseconds.
    "operation_seconds": 30e-6,
    # By default 100 steps or more are between summaries.
    "summary_steps": 20,
    # A checkpoint without data takes 0.1 to 0.4 s.
    "checkpoint_seconds": 0.7,
    # Slow hard disks write 50 MB/s.
    "disk_bytes_per_second": 20e6,
    # A layer cannot be divided: default stages differ by 2.5.
    "stage": 3.0,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Cause:
    """Cause of lost time.

    Attributes:
      name: Name of the cause.
      share: Part of the time without evaluation that is lost to it, from 0 to 1.
      words: Finding, with the replica or task that it is about.
      remedy: Change to make.
    """

    name: str
    share: float
    words: str
    remedy: str


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """All that rules look at: a run, and measurements from outside if there are any."""

    breakdown: Breakdown
    config: Config
    result: Mapping[str, Any]
    measured: Mapping[str, Any]

    def shares(self, *phases: str) -> np.ndarray:
        """Returns each replica's part of the time without evaluation, [replicas]."""
        # The user chooses how much is evaluated; it is no property of a step.
        return np.array(
            [
                replica.share(*phases) / max(1 - replica.share("eval"), 1e-9)
                for replica in self.breakdown.replicas
            ]
        )

    def total(self, name: str) -> float:
        """Returns the sum over tasks of one of their numbers."""
        tasks = self.breakdown.tasks.values()
        return float(
            sum(task["seconds"].get(name, task.get(name, 0)) for task in tasks)
        )

    def common(self, name: str) -> Any:
        """Returns a number that is the same on all tasks."""
        return next(iter(self.breakdown.tasks.values()))[name]

    @property
    def is_overhead(self) -> bool:
        """True if the runtime starts operations for longer than they compute."""
        if self.result["compilation"]["scope"] == "the loop":
            # XLA starts no operation by itself.
            return False
        seconds = sum(sum(s) for s in self.breakdown.replicas[0].steps.values())
        step_seconds = seconds / len(self.breakdown.replicas[0].starts)
        cost = step_seconds / max(self.common("num_operations"), 1)
        return bool(cost < LIMITS["operation_seconds"])


def find_causes(facts: Facts) -> list[Cause]:
    """Returns all causes that are worth a change, the largest first."""
    found = [cause for rule in RULES if (cause := rule(facts)) is not None]
    found = [cause for cause in found if cause.share >= LIMITS["share"]]
    return sorted(found, key=lambda cause: -cause.share)


def _retracing(facts: Facts) -> Cause | None:
    count = int(facts.total("num_retracing_warnings") + facts.total("num_traces_since"))
    if count:
        # A trace takes longer than many steps, wherever the time of it is counted.
        words = (
            f"functions are traced again and again: {count} times TensorFlow noticed"
        )
        remedy = (
            "pass tensors of one shape to tf.function, not Python numbers, and "
            "make functions once, not in every step"
        )
        return Cause("retracing", 1.0, words, remedy)
    return None


def _crowded_cores(facts: Facts) -> Cause | None:
    waited, cores = facts.total("cpu_wait"), facts.common("num_machine_cores")
    part = waited / max(waited + facts.total("cpu"), 1e-9)
    others = facts.measured.get("other_busy_cores") or 0.0
    # Threads of one run wait for each other now and then.
    is_shared = others >= LIMITS["other_busy_cores"]
    is_full = len(facts.breakdown.replicas) > cores
    if part < LIMITS["cpu_wait"] or not (is_shared or is_full):
        return None
    # Threads wait side by side, so that the first is an upper bound of the lost time.
    tasks = facts.breakdown.tasks.values()
    lost = max(task["seconds"]["cpu_wait"] / task["wall_seconds"] for task in tasks)
    share = min(lost, part * float(facts.shares(*_ON_CORES).min()))
    words = (
        f"threads that could run waited {part:.0%} of their time for a core; other "
        f"programs kept {others:.1f} of {cores} cores busy"
    )
    remedy = "stop other programs, or lower --num_replicas or --num_workers"
    return Cause("crowded_cores", share, words, remedy)


_ON_CORES = ("compute", "wire", "update", "python", "summary")


def _slow_input(facts: Facts) -> Cause | None:
    shares = facts.shares("input")
    place = int(shares.argmax())
    name = facts.breakdown.replicas[place].name
    words = f"{name} waits {shares[place]:.0%} of its time for examples"
    remedy = "read faster on that task: less work per example, or files prepared once"
    return Cause("slow_input", float(shares[place]), words, remedy)


def _slow_worker(facts: Facts) -> Cause | None:
    breakdown = facts.breakdown
    slowest, caused = breakdown.slowest, breakdown.caused_wait_seconds
    if slowest is None or max(caused) < LIMITS["caused_wait"] * sum(caused):
        return None
    place = int(np.argmax(caused))
    computed = facts.shares("compute")
    usual = float(np.median(np.delete(computed, place)))
    factor = computed[place] / max(usual, 1e-9)
    if factor < LIMITS["slower"]:
        return None
    words = f"all wait for {slowest.name}, which computes {factor:.1f} times as long"
    remedy = f"look at the machine of {slowest.name}, or train without it"
    # It may be last because it waits for examples, which another rule names. Others
    # lose to its computation no more than it computes longer.
    lost = min(float(facts.shares("wait").max()), float(computed[place]) - usual)
    return Cause("slow_worker", lost, words, remedy)


def _slow_wire(facts: Facts) -> Cause | None:
    communication = facts.result.get("communication") or {}
    sent = communication.get("bytes_per_step_per_replica", 0)
    replica = facts.breakdown.replicas[0]
    # The wire takes equally long for all replicas.
    seconds = float(np.mean(replica.steps["wire"]))
    speed = sent / max(seconds, 1e-9)
    is_slow = speed < LIMITS["bytes_per_second"]
    if sent < LIMITS["wire_bytes"] or not is_slow:
        return None
    words = f"the network brings {speed / 1e6:.0f} MB/s for {sent / 1e6:.1f} MB a step"
    remedy = (
        "use a faster network, --all_reduce_dtype=bfloat16, or --average=parameters"
    )
    return Cause("slow_wire", float(facts.shares("wire").max()), words, remedy)


def _small_work(facts: Facts) -> Cause | None:
    """Finds steps in which starting operations takes longer than computing."""
    if not facts.is_overhead:
        return None
    share = float(facts.shares("compute", "wire", "update", "python").max())
    count = facts.common("num_variables")
    size = facts.common("variable_bytes") / max(count, 1)
    if count >= LIMITS["variables"] and size < LIMITS["variable_bytes"]:
        words = f"{count} variables have {size:.0f} bytes each, and each costs "
        words += "operations of a fixed time"
        remedy = "merge small layers into fewer large ones"
        return Cause("many_tiny_tensors", share, words, remedy)
    # Asynchronous replicas take whole global batches.
    shards = facts.config.strategy.num_shards(facts.result["num_replicas"])
    examples = facts.config.length.global_batch_size / shards
    if examples < LIMITS["examples"]:
        words = (
            f"{examples:g} examples a replica are less work than starting operations"
        )
        return Cause("tiny_batch", share, words, "raise --global_batch_size")
    return None


def _histograms(facts: Facts) -> Cause | None:
    report = facts.config.report
    intervals = [report.summary_every_steps, report.histogram_every_steps]
    interval = min(steps for steps in intervals if steps)
    if interval > LIMITS["summary_steps"]:
        return None
    kind, option = "summaries", "summary_every_steps"
    if interval == report.histogram_every_steps:
        kind, option = "histograms", "set=report.histogram_every_steps"
    words = f"{kind} are written {every(interval, 'step')}"
    remedy = f"write them less often: --{option}={100 * interval}"
    share = float(facts.shares("summary").max())
    return Cause("frequent_summaries", share, words, remedy)


def _slow_disk(facts: Facts) -> Cause | None:
    blocks = [b for t in facts.breakdown.tasks.values() for b in t["blocks"]]
    seconds = [b["seconds"] for b in blocks if b["kind"] == "checkpoint"]
    # Tasks that save nothing only check that their weights are finite.
    saved = [s for s in seconds if s > 1e-2]
    if not saved:
        return None
    # An optimizer has up to two numbers for each weight.
    size = 3 * facts.common("variable_bytes")
    usual = LIMITS["checkpoint_seconds"]
    usual += size / LIMITS["disk_bytes_per_second"]
    if np.median(saved) < usual:
        return None
    words = f"a checkpoint takes {np.median(saved):.1f} s, {usual:.1f} s would be slow"
    remedy = "write --run_dir to a faster disk, or raise --checkpoint_every_steps"
    return Cause("slow_disk", float(facts.shares("checkpoint").max()), words, remedy)


def _uneven_stages(facts: Facts) -> Cause | None:
    stages = (facts.result.get("pipeline") or {}).get("stages", ())
    if len(stages) < 2:
        return None
    busy = np.array([1 - stage["idle_share"] for stage in stages])
    factor = busy.max() / max(np.median(np.delete(busy, busy.argmax())), 1e-9)
    if factor < LIMITS["stage"]:
        return None
    words = f"stage {busy.argmax()} works {factor:.1f} times as long as the others"
    remedy = "move layers to other stages with --pipeline_stages, or leave it out"
    # With equal stages each would work for the mean.
    lost = float(1 - busy.mean() / busy.max()) * float(facts.shares("compute").max())
    return Cause("uneven_stages", lost, words, remedy)


RULES: Sequence[Callable[[Facts], Cause | None]] = (
    *(_retracing, _crowded_cores, _slow_input, _slow_worker, _slow_wire),
    *(_small_work, _histograms, _slow_disk, _uneven_stages),
)

# Change to make if a phase is the largest, and no cause stands out.
ADVICE: Mapping[str, str] = {
    "input": "prepare examples once, in files that are read in order",
    "compute": "the model itself is the work: more replicas share it",
    "wait": "give all replicas equal machines and equal shards",
    "wire": "send less: larger batches, bfloat16, or fewer averages",
    "update": "a simpler optimizer, or less observed of each update",
    "python": "more steps a call: leave --steps_per_loop out",
    "summary": "raise --summary_every_steps",
    "eval": "raise --eval_every_steps",
    "checkpoint": "raise --checkpoint_every_steps",
    "chief": "let the chief write less often",
}

# Advice for a program (`--script`), which decides these and not a flag.
ADVICE_FOR_PROGRAMS: Mapping[str, str] = {
    "python": "callbacks that observe batches make each step a call: observe epochs",
    "eval": "validate less often: validation_freq, or fewer validation_steps",
}


def advice_on(phase: str, config: Config) -> str:
    """Returns the change to make if a phase is the largest, and no cause stands out."""
    is_program = config.model.script is not None
    return (ADVICE_FOR_PROGRAMS if is_program else {}).get(phase, ADVICE[phase])
