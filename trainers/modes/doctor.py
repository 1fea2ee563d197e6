"""Readiness check of a command, and hints on speed (`--mode=doctor`)."""

import dataclasses
import functools
import os
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

from strategies import registry
from strategies.base import Traits
from strategies.cluster.node_info import exchange
from strategies.cluster.spec import Cluster
from strategies.common.console import Console
from strategies.common.errors import ExitCode
from strategies.common.text import shown
from strategies.devices.assignment import configure_devices, describe, substitution
from strategies.devices.gpu import visible_gpus
from strategies.processes.emulated_network import networks_of_tasks
from trainers.cli.launch import plan_of
from trainers.cli.role import cluster_of
from trainers.config.config import Config
from trainers.loop.builder import assemble, create_strategy
from trainers.loop.memory_estimate import (
    capacity_of,
    estimate_memory,
    largest,
    warning_of,
)
from trainers.loop.parts import TrainingParts
from trainers.modes.doctor_findings import Findings, Hardware, slow_settings
from trainers.modes.node_comparison import (
    collect_node_info,
    differences,
    in_words,
    unsupported,
)
from trainers.run_dir.run_dir import RunDir
from trainers.run_dir.training_dir import TrainingDir

_LEAST_FREE_BYTES = 1 << 30


def doctor(config: Config, console: Console) -> ExitCode:
    """Prints findings on a run and their remedies. Writes and starts nothing.

    Returns:
      DONE if the run could start, USAGE if not.
    """
    findings = Findings(console)
    _Checks(config, findings).run()
    return findings.conclude()


@dataclasses.dataclass(slots=True)
class _Checks:
    """Checks of one command line on this machine."""

    config: Config
    findings: Findings

    @property
    def traits(self) -> Traits:
        return self.config.strategy.traits

    def run(self) -> None:
        """Prints the properties of the run and collects the findings."""
        config = self.config
        self.findings.show(
            "command",
            f"{config.strategy.strategy}, {config.model.model} on "
            f"{config.data.dataset}, {config.length.global_batch_size} examples a step",
        )
        node_info = collect_node_info(config)
        self._show_machine(node_info)
        self.findings.add("problem", *unsupported(node_info))
        # Every check runs even if an earlier one failed, so that one call reports all
        # problems.
        starts_here, cluster = self._find_cluster()
        with self.findings.collect_errors():
            configure_devices(config.strategy, config.device)
            if words := substitution(config.strategy.device_choice):
                self.findings.add("warning", words)
        with self.findings.collect_errors():
            strategy = registry.load(config.strategy.strategy)
            strategy.check_devices(config.strategy)
        replicas = self._dry_run(cluster)
        if cluster.addresses:
            replicas = self._count_replicas(cluster, node_info, starts_here)
            if starts_here:
                self._show_plan(cluster)
            else:
                self._meet(cluster, node_info)
        hardware = self._hardware(cluster, node_info, replicas, starts_here)
        self.findings.add("slow", *slow_settings(config, hardware))

    def _find_cluster(self) -> tuple[bool, Cluster]:
        """Returns whether this command would start the cluster, and the cluster.

        The cluster has no addresses for a single process, or if a problem prevents
        finding them.
        """
        with self.findings.collect_errors():
            found = cluster_of(self.config, os.environ)
            if found is not None:
                return False, found
            # The path of the folder is not used: nothing is started.
            plan = plan_of(self.config, (), RunDir(pathlib.Path()))
            job = "chief" if "chief" in plan.addresses else "worker"
            return True, Cluster(job=job, addresses=plan.addresses)
        return False, Cluster()

    def _dry_run(self, cluster: Cluster) -> int:
        """Runs the parts of training that write nothing; returns the replica count.

        In a cluster a single device replaces the strategy, because TensorFlow's
        multi-process strategies wait for each other in their constructors.
        """
        config = self.config
        if cluster.is_chief:
            with self.findings.collect_errors():
                self._show_folder(TrainingDir(config))
        if cluster.job in self.traits.server_jobs:
            return 1
        alone = Config() if self.traits.multi_process else config
        with self.findings.collect_errors():
            parts = assemble(config, create_strategy(alone, Cluster()))
            data = parts.data
            self.findings.show(
                "data",
                f"{config.data.dataset}, {data.train.num_examples:,} examples to "
                f"train, {data.evaluation.num_examples:,} held out",
            )
            parameters = parts.model.count_params()
            self.findings.show(
                "model", f"{config.model.model}, {parameters:,} parameters"
            )
            self.findings.show("xla", parts.compilation.words)
            replicas = parts.strategy.num_replicas
            if not self.traits.multi_process:
                on = describe(parts.strategy.devices)
                self.findings.show("replicas", f"{replicas}, on {on}")
                self._show_memory(parts)
            parts.strategy.close()
            return replicas
        # Reached if a part failed.
        return self.config.strategy.num_replicas or 1

    def _count_replicas(
        self, cluster: Cluster, node_info: Mapping[str, Any], starts_here: bool
    ) -> int:
        tasks = len(self._computing(cluster))
        # The launcher divides this machine's GPUs among the tasks that compute.
        gpus = len(visible_gpus(os.environ)) // tasks
        local = gpus if starts_here else len(node_info["gpus"])
        # An asynchronous worker is one replica, regardless of its devices.
        replicas = tasks * max(1, local) if self.traits.synchronous else tasks
        size = self.config.length.global_batch_size
        sharing = self.config.strategy.num_shards(replicas)
        share, rest = divmod(size, sharing)
        examples = f"{share} or {share + 1}" if rest else f"{share}"
        words = f"{replicas}, with {examples} examples of a step each"
        self.findings.show("replicas", words)
        steps = self.config.strategy.gradient_accumulation_steps
        if size < sharing * steps:
            parts = f" x {steps} micro-batches" if steps > 1 else ""
            self.findings.add(
                "problem",
                f"--global_batch_size={size} is smaller than the {sharing} replicas"
                f"{parts}: each needs an example; raise it or lower --num_workers.",
            )
        return replicas

    def _computing(self, cluster: Cluster) -> tuple[str, ...]:
        """Returns the addresses of the tasks with replicas.

        A chief that only coordinates worker servers has none.
        """
        if "worker" in self.traits.server_jobs:
            return tuple(cluster.addresses["worker"])
        return cluster.computing

    def _hardware(
        self,
        cluster: Cluster,
        node_info: Mapping[str, Any],
        replicas: int,
        starts_here: bool,
    ) -> Hardware:
        computing_here = 1
        if cluster.addresses:
            own_host = cluster.address.rpartition(":")[0]
            hosts = [a.rpartition(":")[0] for a in self._computing(cluster)]
            # Emulated hosts are this machine.
            computing_here = len(hosts) if starts_here else hosts.count(own_host)
        return Hardware(
            cores=node_info["cores"],
            gpus=len(node_info["gpus"]),
            gpus_of_driver=len(visible_gpus(os.environ)),
            replicas=replicas,
            computing_here=computing_here,
        )

    def _show_machine(self, node_info: Mapping[str, Any]) -> None:
        versions = ", ".join(f"{n} {v}" for n, v in node_info["versions"].items())
        self.findings.show("versions", versions)
        gpus = ", ".join(node_info["gpus"]) or "no GPU"
        cores, memory = node_info["cores"], node_info["memory_mib"] / 1024
        total = os.cpu_count() or cores
        self.findings.show(
            "machine", f"{cores} of {total} cores, {memory:.1f} GiB of memory, {gpus}"
        )

    def _show_folder(self, folder: RunDir) -> None:
        state = "continues the run there" if folder.holds_a_run else "new"
        path = folder.path.absolute()
        existing = next(p for p in (path, *path.parents) if p.is_dir())
        free = shutil.disk_usage(existing).free
        name = self.config.run.run_dir or "a folder of its own in runs/"
        self.findings.show("run", f"{name} ({state}), {free / 2**30:.1f} GiB free")
        if free < _LEAST_FREE_BYTES:
            self.findings.add(
                "warning",
                f"{existing} has {free >> 20} MiB left for checkpoints and summaries: "
                "make room, or choose another --run_dir.",
            )

    def _show_memory(self, parts: TrainingParts) -> None:
        name, estimate = largest(estimate_memory(parts))
        self.findings.show("memory", str(estimate))
        warning = warning_of(name, estimate, capacity_of(name))
        if warning is not None:
            self.findings.add("warning", f"{warning}.")

    def _show_plan(self, cluster: Cluster) -> None:
        strategy = self.config.strategy
        networks = networks_of_tasks(
            cluster.tasks(),
            strategy.emulated_bandwidth_mbit,
            strategy.isolate_network,
            functools.partial(self.findings.add, "warning"),
        )
        # Created and removed, only to check that it can be created.
        with self.findings.collect_errors(), networks:
            pass
        self.findings.show(
            "cluster", "would be started here, on free ports such as these"
        )
        self._show_tasks(
            cluster, dict.fromkeys(cluster.tasks(), "this Python, the same versions")
        )
        # A batch script outside of srun starts all tasks on its own node.
        tasks = os.environ.get("SLURM_NTASKS", "1")
        if tasks != "1":
            self.findings.add(
                "slow",
                f"Slurm has given this job {shown(tasks)} tasks, and all processes "
                "would be on this machine: start the command by srun.",
            )

    def _meet(self, cluster: Cluster, node_info: Mapping[str, Any]) -> None:
        """Exchanges and compares node information with the doctors of other tasks."""
        seconds = self.config.strategy.startup_timeout_seconds
        self.findings.show(
            "cluster",
            f"this is {cluster.task}; waits up to {seconds:g} s for the same command "
            "on the others",
        )
        states = {cluster.task: "this task"}
        with self.findings.collect_errors():
            for task, answer in exchange(cluster, node_info, seconds).items():
                if answer.node_info is not None:
                    states[task] = in_words(answer.node_info)
                    for kind, text in differences(task, answer.node_info, node_info):
                        self.findings.add(kind, text)
                    continue
                states[task] = f"not reached: {answer.problem}"
                self.findings.add(
                    "problem",
                    f"{task} at {cluster.tasks()[task]} was not reached "
                    f"({answer.problem}): run this command on every task at the same "
                    "time; if that was done, correct the address or the firewall.",
                )
        self._show_tasks(cluster, states)

    def _show_tasks(self, cluster: Cluster, states: Mapping[str, str]) -> None:
        width = max(map(len, cluster.tasks().values()))
        for task, address in cluster.tasks().items():
            state = states.get(task, "not asked")
            self.findings.show("", f"{task:<9}  {address:<{width}}  {state}")
