"""Fixtures and settings of all tests."""

from hypothesis import settings

pytest_plugins = ["e2e.fixtures"]

# How long an example takes says nothing on a machine that others use too.
settings.register_profile("longboat", deadline=None)
settings.load_profile("longboat")
