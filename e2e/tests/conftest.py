"""Fixtures of the tests that use Longboat as people do."""

import pytest

from e2e import site as sites
from e2e.cluster.cluster import Cluster
from e2e.tests import small_job

NAMESPACE = "e2e"


@pytest.fixture(scope="session")
def site(cluster: Cluster) -> sites.Site:
    """Longboat installed on the test cluster, with a namespace that enforces Pod Security `restricted` and small data."""
    data = cluster.layout.root / "data" / NAMESPACE
    prepared = sites.prepare(cluster, NAMESPACE, data)
    small_job.write_data(data)
    return prepared
