"""Clusters beside each other and one after the other."""

from collections.abc import Iterator

import pytest

from e2e.cluster import Cluster, ClusterError
from e2e.cluster.cli import main

pytestmark = [pytest.mark.cluster, pytest.mark.extended]


@pytest.fixture
def names() -> Iterator[list[str]]:
    names = ["beside-a", "beside-b"]
    yield names
    for name in names:
        Cluster.down(name)


def test_two_clusters_side_by_side_then_up_after_down(names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    first, second = names
    assert [main(["up", "--name", name]) for name in names] == [0, 0]
    a, b = Cluster.find(first), Cluster.find(second)
    assert a is not None
    assert b is not None
    assert a.network != b.network

    a.kubectl("create", "namespace", "only-a")
    b.kubectl("create", "namespace", "only-b")
    assert "only-b" not in a.kubectl("get", "namespaces")

    capsys.readouterr()
    assert main(["up", "--name", first]) == 0
    assert "is up already" in capsys.readouterr().out
    with pytest.raises(ClusterError, match="is up already"):
        Cluster.up(first)

    assert main(["down", "--name", first]) == 0
    assert Cluster.find(first) is None
    assert "only-b" in b.kubectl("get", "namespaces")
    assert main(["down", "--name", first]) == 0
    assert "is down already" in capsys.readouterr().out

    again = Cluster.up(first)
    assert "only-a" not in again.kubectl("get", "namespaces")
    assert again.kubectl("get", "node", "node0", "-o", "jsonpath={.status.conditions[-1].status}") == "True"


def test_commands_on_a_cluster_that_is_down_say_how_to_start_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kubeconfig", "--name", "not-there"]) == 1
    assert "up --name not-there" in capsys.readouterr().err
