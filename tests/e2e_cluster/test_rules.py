"""Rules of the test cluster that need no cluster."""

import io
import ipaddress
import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e2e.cluster import ClusterError
from e2e.cluster.binaries import PAUSE
from e2e.cluster.cli import main
from e2e.cluster.components import control_plane
from e2e.cluster.images import catalogue, mirror, pause
from e2e.cluster.network import INDEXES, Network, free_indexes
from e2e.cluster.paths import Layout, check_name, default_name
from e2e.cluster.timings import QUICK
from tests.support.examples import examples

SUBNETS = st.builds(
    lambda address, bits: str(ipaddress.ip_network((address, bits), strict=False)),
    st.integers(0, 2**32 - 1),
    st.integers(1, 32),
)


@settings(max_examples=examples(25))
@given(st.lists(SUBNETS, max_size=5), st.lists(st.sampled_from([Network(i).subnet for i in INDEXES]), max_size=5))
def test_a_free_network_overlaps_nothing(taken: list[str], clusters: list[str]) -> None:
    busy = [ipaddress.ip_network(subnet) for subnet in taken + clusters]
    for index in free_indexes(taken + clusters):
        for subnet in (Network(index).subnet, Network(index).pods):
            assert not any(ipaddress.ip_network(subnet).overlaps(other) for other in busy)


def test_other_clusters_and_the_hosts_own_addresses_are_avoided() -> None:
    assert free_indexes([]) == list(INDEXES)
    assert free_indexes(["10.97.1.0/30", "10.244.2.17/32"])[0] == 3
    assert free_indexes(["10.96.0.0/11"]) == []


@pytest.mark.parametrize("name", ["", "Dev", "a_b", "-a", "a-", "a" * 21, "../a"])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(ClusterError, match="no cluster name"):
        check_name(name)


def test_the_default_name_is_a_name() -> None:
    assert check_name(default_name()) == default_name()


def test_a_cache_folder_with_a_long_path_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet would fail much later, for the path of a socket."""
    monkeypatch.setenv("XDG_CACHE_HOME", f"/{'long' * 20}")
    with pytest.raises(ClusterError, match="set XDG_CACHE_HOME to a shorter one"):
        Layout.from_name("any")


def test_components_name_only_files_of_the_cluster_and_the_cache() -> None:
    layout = Layout.from_name("any")
    for component, command in control_plane(layout, Network(7), QUICK).items():
        assert component in command or component in command[0]
        for word in command[1:]:
            if "=/" in word:
                assert word.partition("=")[2].startswith(str(layout.root)), word


@pytest.mark.cluster
def test_the_pause_archive_is_a_docker_archive() -> None:
    archive = pause.archive()
    with tarfile.open(archive) as tar:
        (manifest,) = json.load(tar.extractfile("manifest.json") or io.BytesIO())
        layer = tar.extractfile(manifest["Layers"][0])
        assert layer is not None
        with tarfile.open(fileobj=io.BytesIO(layer.read())) as inner:
            program = inner.extractfile("pause")
            assert program is not None
            assert program.read() == PAUSE.path.read_bytes()
    assert manifest["RepoTags"] == [pause.NAME]


def test_an_image_is_named_by_all_it_is_made_of(tmp_path: Path) -> None:
    names = set()
    for contents in ("one", "two"):
        (tmp_path / "file").write_text(contents)
        names.add(catalogue.digest(tmp_path))
    (tmp_path / "file").rename(tmp_path / "other")
    names.add(catalogue.digest(tmp_path))
    assert len(names) == 3
    (tmp_path / "other").rename(tmp_path / "file")
    assert catalogue.digest(tmp_path) in names


def test_the_mirror_is_this_machines_own() -> None:
    assert mirror.installed_from().uri.startswith(("http", "file", "copy"))


def test_an_unknown_command_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["upp"])
    assert "up" in capsys.readouterr().err
