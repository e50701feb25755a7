"""Sets how many examples property tests try, and whether each run tries the same ones."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# The same examples in each run: a property that holds nearly always must not reject unrelated work now and then.
FIXED = "fixed"

# Other examples in each run, and more of them: `--hypothesis-profile search`.
SEARCH = "search"

# A fixed run tries a tenth of the examples of a random search, but at least five.
_TENTH, _FEWEST = 10, 5


def register() -> None:
    """Registers both profiles, and loads the one of fixed examples.

    How long an example takes says nothing on a machine that others use too.
    """
    common = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile(FIXED, common, derandomize=True, database=None, max_examples=10)
    settings.register_profile(SEARCH, common)
    settings.load_profile(FIXED)


def examples(count: int) -> int:
    """Returns how many examples to try if a random search tries `count`: a tenth if they are fixed, but at least five."""
    return count if settings.get_current_profile_name() == SEARCH else max(min(count, _FEWEST), count // _TENTH)
