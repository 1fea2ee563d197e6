"""Checks that tasks which were started one by one do the same training.

A worker with another learning rate, seed or data would train another model, and nothing
would show it. Tasks of a launcher have one command and one machine, but a program may
make other data on each.
"""

from strategies.base import Strategy
from strategies.cluster.spec import Cluster
from strategies.common.console import Console
from trainers.config.config import Config
from trainers.loop.parts import TrainingParts
from trainers.loop.task_agreement import other_messages, refuse_together
from trainers.modes.node_comparison import differences, source_digest
from trainers.reporting.result import examples_sha256, versions


def require_same_command(
    config: Config, cluster: Cluster, strategy: Strategy, console: Console
) -> None:
    """Checks that all tasks that train together have the same settings and versions.

    All of them have to call this function, before any other collective.

    Raises:
      UsageError: Another task has other settings, or another version of TensorFlow or
        Keras. Every task raises it.
    """
    settings = config.to_dict()
    # Only the chief's folder counts. With --script it may differ, because it is below
    # the working directory of each machine.
    del settings["run_dir"]
    own = {"versions": versions(), "source": source_digest(), "settings": settings}
    problems = []
    for task, theirs, ours in other_messages(own, cluster, strategy):
        for kind, words in differences(task, theirs, ours):
            if kind == "problem":
                problems.append(words)
            elif cluster.is_chief:
                console.warn(words)
    if problems:
        refuse_together(problems[0], strategy)


def require_same_data(parts: TrainingParts, cluster: Cluster, console: Console) -> None:
    """Checks that all tasks that train together have as many examples and steps.

    All of them have to call this function. The chief warns if the first examples
    differ, which are random in some programs.

    Raises:
      UsageError: Another task has more or fewer. Every task raises it.
    """
    data = parts.data
    sizes = [int(each.num_examples) for each in (data.train, data.evaluation)]
    own = {"sizes": sizes, "steps": parts.train_steps, "first": examples_sha256(data)}
    problems = []
    for task, theirs, ours in other_messages(own, cluster, parts.strategy):
        if theirs["sizes"] != ours["sizes"]:
            trained, held_out = theirs["sizes"]
            problems.append(
                f"{task} has {trained:,} examples to train on and {held_out:,} held "
                f"out, and this task {sizes[0]:,} and {sizes[1]:,}: give every task "
                "the same data."
            )
        elif theirs["steps"] != ours["steps"]:
            problems.append(
                f"{task} would train up to step {theirs['steps']:,} and this task up "
                f"to step {ours['steps']:,}: let epochs and batch sizes depend on what "
                "every task has, such as the history of a fit or attributes of a "
                "callback."
            )
        elif theirs["first"] != ours["first"] and cluster.is_chief:
            console.warn(
                f"{task} has other examples than this task: unless they are drawn at "
                "random, give every task the same data."
            )
    if problems:
        refuse_together(problems[0], parts.strategy)
