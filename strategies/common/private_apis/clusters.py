"""Private names of clusters and their coordinator."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python.eager import context, executor


def give_up_connecting(num_tasks: Mapping[str, int], seconds: float) -> None:
    """Limits how long computing processes wait for each other while they connect.

    Without a limit they wait for an hour, in C++ that no Python thread can interrupt,
    for a process that was killed at that moment. Call this function before
    `MultiWorkerMirroredStrategy` is made. That class has no argument for the limit, and
    does not change a configuration that exists already
    (tensorflow/python/distribute/collective_all_reduce_strategy.py,
    `_initialize_multi_worker`).

    Args:
      num_tasks: Number of computing tasks by job. The chief leads if there is one.
      seconds: Time until `tf.errors.DeadlineExceededError` is raised.
    """
    jobs = [
        coordination_config_pb2.CoordinatedJob(name=job, num_tasks=count)
        for job, count in num_tasks.items()
    ]
    # Without a chief, worker 0 leads.
    leader = "chief" if "chief" in num_tasks else "worker"
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{leader}/replica:0/task:0",
        cluster_register_timeout_in_ms=round(1e3 * seconds),
        coordinated_jobs=jobs,
    )


def values_where_they_are(
    result: tf.distribute.experimental.coordinator.RemoteValue,
) -> Any:
    """Returns the result of a scheduled function on its devices, once it is complete.

    `RemoteValue.get` copies the whole result. It therefore fails if the worker dies
    afterwards, and it does not say which worker computed the result
    (tensorflow/python/distribute/coordinator/values.py,
    `RemoteValueImpl._get_values`).
    """
    # Waits for the function, as `get` does.
    return result._get_values()


@contextlib.contextmanager
def own_executor() -> Iterator[None]:
    """Gives this thread an executor in the block, for which no other thread waits.

    Otherwise all threads share the default executor, and the coordinator's threads wait
    until it has nothing to do whenever a closure ends or fails: `executor_scope`
    deletes a wrapper of it, whose `__del__` waits (tensorflow/python/eager/
    executor.py). A function that waits for a worker must not run there: if that worker
    is killed, its closure can neither fail nor be handed on before the function ends.
    """
    with context.executor_scope(executor.new_executor(enable_async=False)):
        yield


def slurm_addresses(
    jobs: Mapping[str, int], first_port: int
) -> tuple[dict[str, tuple[str, ...]], str, int]:
    """Returns addresses by job, the own job and the own index from Slurm's variables.

    The resolver of TensorFlow sorts hosts as text, so that rank 0 of node[9-10] takes
    itself to be on node10. Numbers in front of the names keep Slurm's order
    (tensorflow/python/distribute/cluster_resolver/slurm_cluster_resolver.py,
    `cluster_spec`).

    Raises:
      RuntimeError: The variables describe another number of tasks.
      ValueError: A list of nodes or of tasks per node is malformed.
    """
    resolver = _SlurmResolver(
        jobs=dict(jobs),
        port_base=first_port,
        # Slurm assigns the GPUs. Without these numbers the resolver calls nvidia-smi,
        # and fails on a machine without that program.
        gpus_per_node=sum(jobs.values()),
        gpus_per_task=1,
        auto_set_gpu=False,
    )
    # 000001/host:port without the number and the slash.
    addresses = {
        job: tuple(numbered.partition("/")[2] for numbered in found)
        for job, found in resolver.cluster_spec().as_dict().items()
    }
    return addresses, *resolver.get_task_info()


class _SlurmResolver(tf.distribute.cluster_resolver.SlurmClusterResolver):
    def _resolve_task_configuration(self) -> dict[str, int]:
        found = super()._resolve_task_configuration()
        return {
            f"{position:06d}/{host}": num_tasks
            for position, (host, num_tasks) in enumerate(found.items())
        }
