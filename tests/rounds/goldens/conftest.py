"""The recording is frozen and uses the names of its time. Modules and classes renamed since are available under both names."""

from __future__ import annotations

import sys

from longboat_runtime.rounds import policies, records

sys.modules["longboat_runtime.rounds.named"] = policies
records.State = records.SampleState
