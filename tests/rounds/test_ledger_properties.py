"""A few interleavings in every run of the tests; `make interleavings` runs many."""

from __future__ import annotations

from tests.rounds.interleavings import Interleavings, interleavings

Interleavings.TestCase.settings = interleavings(100)
TestInterleavings = Interleavings.TestCase
