"""Words for the tasks that a stalled run waits for.

All tasks ask each other and judge by the same rules, so that they name the same tasks.
"""

from collections.abc import Mapping

from strategies.cluster.activity import Sign
from strategies.cluster.failure_detection import CUT_OFF
from strategies.cluster.inquiry import Report
from strategies.cluster.probes import PeerState
from strategies.cluster.spec import Cluster

_IN_WORDS = {
    "startup": "starting",
    "program": "running the program",
    "trace": "tracing",
    "train": "training",
    "eval": "evaluating",
    "checkpoint": "saving",
    "summary": "writing summaries",
}
_NO_ANSWER = {
    PeerState.SILENT: "does not answer: it is suspended, or its network is cut off",
    PeerState.DEAD: "was lost",
    # TensorFlow's server answers without Python's lock.
    PeerState.SERVING: "answers by TCP alone: its Python is blocked, or a firewall "
    "lets no UDP through",
}
_ALL_WAIT = (
    "any task: all wait in TensorFlow, for a message that was lost, or for an input "
    "whose operations wait"
)
_MOST_NAMED = 4


def describe_tasks_behind(
    cluster: Cluster, own: Report, answers: Mapping[str, Report | PeerState]
) -> str:
    """Returns a clause with the step not reached, the tasks behind, and their work.

    `answers` are the report of each peer, or the state of its port without a report.
    """
    reports = {name: a for name, a in answers.items() if isinstance(a, Report)}
    reports[cluster.task] = own
    step = max(report.step for report in reports.values()) + 1
    if not cluster.addresses:
        return f"step {step} has not been reached by this run, which {_work(own)}"
    behind, places = _behind(cluster.task, reports, answers), cluster.members()
    named = [f"{task} at {places[task]}, which {what}" for task, what in behind.items()]
    more = [f"and {len(named) - _MOST_NAMED} more"] if len(named) > _MOST_NAMED else []
    words = "; ".join([*named[:_MOST_NAMED], *more])
    return f"step {step} has not been reached by {words or _ALL_WAIT}"


def _behind(
    task: str, reports: Mapping[str, Report], answers: Mapping[str, Report | PeerState]
) -> dict[str, str]:
    """Returns the tasks behind, by name, with the surest words for them."""
    states = {t: a for t, a in answers.items() if isinstance(a, PeerState)}
    if len(states) == len(answers) > 1 and set(states.values()) == {PeerState.SILENT}:
        return {task: CUT_OFF}
    gone = {t: _NO_ANSWER[s] for t, s in states.items() if s is not PeerState.SERVING}
    unanswered = {t: _NO_ANSWER[s] for t, s in states.items() if s is PeerState.SERVING}
    busy = {t: _work(r) for t, r in reports.items() if r.sign is not Sign.NONE}
    waiting = {t: w for t, w in busy.items() if reports[t].sign is not Sign.COMPUTES}
    return gone or waiting or unanswered or busy


def _work(report: Report) -> str:
    words = report.sign.value.format(where=report.where)
    if not report.doing:
        return f"is {words}"
    doing = _IN_WORDS.get(report.doing, report.doing)
    return f"for {report.idle_seconds:.0f} s has been {doing}, {words}"
