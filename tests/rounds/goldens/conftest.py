"""The recording is frozen and knows things by the names that they had. What has been renamed since is found under its old name, too."""

from __future__ import annotations

import sys

from longboat_runtime.rounds import policies, records

sys.modules["longboat_runtime.rounds.named"] = policies
records.State = records.SampleState
