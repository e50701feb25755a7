"""Fixtures and settings of all tests."""

from collections.abc import Iterator

import pytest
import structlog
from hypothesis import settings

pytest_plugins = ["e2e.fixtures"]

# How long an example takes says nothing on a machine that others use too.
settings.register_profile("longboat", deadline=None)
settings.load_profile("longboat")


@pytest.fixture(autouse=True)
def _default_logging() -> Iterator[None]:
    """What a command under test set up would write to that test's captured output, which is closed by the next one."""
    yield
    structlog.reset_defaults()
