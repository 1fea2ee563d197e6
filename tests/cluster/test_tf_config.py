"""Checks that every wrong TF_CONFIG is refused in one line that names the key."""

import json

import pytest

from strategies.cluster.spec import check_roles, from_environment, parse_tf_config
from strategies.common.errors import UsageError
from tests.cluster.wrong_tf_config import GOOD, WRONG, without


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_value_is_refused_in_one_line(case: str) -> None:
    value, expected = WRONG[case]
    text = value if isinstance(value, str) else json.dumps(value)
    with pytest.raises(UsageError) as refusal:
        parse_tf_config(text)
    message = str(refusal.value)
    assert expected in message
    assert len(message.splitlines()) == 1
    assert "An accepted value: " in message
    assert len(message) < 600


def test_a_good_value_is_this_task() -> None:
    cluster = parse_tf_config(json.dumps(GOOD))
    assert (cluster.job, cluster.index, cluster.task) == ("worker", 2, "worker-2")
    assert cluster.address == "[::1]:65535"
    assert not cluster.is_chief
    assert cluster.rank == 3
    assert parse_tf_config(cluster.tf_config()) == cluster


def test_the_first_worker_is_chief_where_there_is_none() -> None:
    value = without("cluster", "chief")
    assert not parse_tf_config(json.dumps(value)).is_chief
    value["task"]["index"] = 0
    assert parse_tf_config(json.dumps(value)).is_chief


@pytest.mark.parametrize("environment", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": " "}])
def test_without_tf_config_a_process_is_alone(environment: dict[str, str]) -> None:
    assert from_environment(environment) is None


def test_a_cluster_must_have_what_a_strategy_needs_and_nothing_else() -> None:
    cluster = parse_tf_config(json.dumps(GOOD))
    check_roles(cluster, required=("worker", "ps"), allowed=("chief",))
    with pytest.raises(UsageError, match=r"key cluster\.ps has no place"):
        check_roles(cluster, required=("worker",), allowed=("chief",))
    with pytest.raises(UsageError, match=r"key cluster\.evaluator is missing"):
        check_roles(cluster, required=("evaluator",), allowed=())
