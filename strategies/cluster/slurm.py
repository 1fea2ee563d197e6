"""Task of this process among the tasks of Slurm's `srun`.

The cluster equals that of `tf.distribute.cluster_resolver.SlurmClusterResolver`. Only
`identify` needs TensorFlow, so that a process outside Slurm never loads it here.
"""

import re
from collections.abc import Mapping

from strategies.cluster.spec import Cluster
from strategies.common.errors import UsageError
from strategies.common.text import shown

# 350 ranges of 64 ports end at 32,399, below Linux's ports for outgoing connections,
# 32,768 and up.
_FIRST_PORT = 10_000
_PORTS_PER_STEP = 64
_NUM_RANGES = 350


def is_step(environment: Mapping[str, str]) -> bool:
    """Returns whether `srun` has started this process as one of several."""
    # A batch script outside `srun` has the variables of its job, but is a single task.
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "")
    return tasks.strip() not in ("", "1")


def hosts(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the step's hosts as Slurm writes them, by the variable with the hosts."""
    # A range such as node[1-3] stays one name: only a single host can be loopback.
    name = "SLURM_STEP_NODELIST"
    listed = environment.get(name, "").strip()
    return {name: listed} if listed else {}


def first_port(job: int, step: int) -> int:
    """Returns the lowest port of a step's tasks on every node.

    The tasks of a node count up from this port. The steps of one job have different
    ranges, and so have first steps (0) of jobs whose numbers are less than 350 apart.
    Later steps may share a range with another job, such as step 4 of job 1 with step 0
    of job 35.
    """
    # Slurm does not assign a port: SLURM_STEP_RESV_PORTS exists only where the
    # administrator has set MpiParams, and SLURM_SRUN_COMM_PORT belongs to srun.
    return _FIRST_PORT + (31 * job + step) % _NUM_RANGES * _PORTS_PER_STEP


def num_tasks_by_job(
    environment: Mapping[str, str], wanted: Mapping[str, int | None]
) -> dict[str, int]:
    """Divides a step's tasks among jobs.

    Args:
      environment: Slurm's variables.
      wanted: Number of tasks by job; None for all remaining tasks, at least one.

    Raises:
      UsageError: The step has more or fewer tasks, or a variable is malformed.
    """
    total = _number(environment, "SLURM_STEP_NUM_TASKS")
    left = total - sum(number or 0 for number in wanted.values())
    jobs = {job: left if n is None else n for job, n in wanted.items()}
    if min(jobs.values()) < 1 or sum(jobs.values()) != total:
        words = ", ".join(f"{n or '1 or more'} {job}" for job, n in wanted.items())
        raise UsageError(
            f"Slurm has started {total} tasks, and the strategy needs {words}: change "
            "srun's --ntasks, or --num_workers and --num_ps."
        )
    return jobs


def identify(environment: Mapping[str, str], jobs: Mapping[str, int]) -> Cluster:
    """Returns this process's task in the step. Imports TensorFlow.

    Args:
      environment: Value of `os.environ`, which TensorFlow's resolver reads as well.
      jobs: Number of tasks by job. Slurm's ranks go to jobs in the order of their
        names.

    Raises:
      UsageError: A variable is missing or malformed, or the tasks are in another order
        than the resolver assumes.
    """
    # These checks come first, because TensorFlow's errors do not name the variable.
    rank, total = _number(environment, "SLURM_PROCID"), sum(jobs.values())
    if rank >= total:
        raise _refusal(environment, "SLURM_PROCID", f"a number below {total}")
    for name in ("SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"):
        if not environment.get(name):
            raise _refusal(environment, name, "what srun sets")
    port = first_port(
        _number(environment, "SLURM_JOB_ID"), _number(environment, "SLURM_STEP_ID")
    )
    # This imports TensorFlow, which takes seconds.
    from strategies.common.private_apis.clusters import slurm_addresses

    try:
        addresses, job, index = slurm_addresses(jobs, port)
    except (RuntimeError, ValueError) as error:
        raise UsageError(
            f"Slurm's variables are not a cluster ({error}): start every task by srun."
        ) from error
    cluster = Cluster(job=job, index=index, addresses=addresses)
    _check_node(environment, cluster)
    return cluster


def _check_node(environment: Mapping[str, str], cluster: Cluster) -> None:
    """Raises UsageError if the task's node is not the node that the cluster expects.

    Slurm may have placed tasks in another order, such as a cyclic one. Every task would
    then take itself for another task.
    """
    node = environment.get("SLURMD_NODENAME")
    host = cluster.address.rpartition(":")[0]
    if node and node != host:
        raise UsageError(
            f"SLURM_PROCID={environment['SLURM_PROCID']} is on {shown(node)}, and "
            f"should be on {shown(host)}: ranks are taken to fill one node after the "
            "other; add --distribution=block to srun."
        )


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not re.fullmatch(r"[0-9]{1,10}", text):
        raise _refusal(environment, name, "a whole number")
    return int(text)


def _refusal(environment: Mapping[str, str], name: str, accepted: str) -> UsageError:
    value = environment.get(name)
    received = f"{name} is missing" if value is None else f"{name}={shown(value)}"
    return UsageError(
        f"{received}: it takes {accepted}; start every task by srun, or set TF_CONFIG."
    )
