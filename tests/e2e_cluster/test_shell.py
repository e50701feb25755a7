"""Commands that fail or hang."""

import pytest

from e2e.cluster.errors import ClusterError, CommandError
from e2e.cluster.shell import run

LIMIT = 0.1  # seconds, for a command that never ends


def test_a_failed_command_says_its_status_and_its_last_words() -> None:
    with pytest.raises(CommandError, match=r"`sh -c echo why >&2; exit 3` ended with status 3: why"):
        run(["sh", "-c", "echo why >&2; exit 3"])


def test_a_command_that_hangs_is_an_error_of_the_cluster() -> None:
    with pytest.raises(ClusterError, match=r"`sleep infinity` hasn't ended after 0.1 s"):
        run(["sleep", "infinity"], timeout=LIMIT)
