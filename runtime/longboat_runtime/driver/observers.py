"""The observers of a driver, in the order in which they note events and are waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from longboat_runtime.driver.audits import Audits
from longboat_runtime.driver.canaries import Canaries
from longboat_runtime.driver.context import Context
from longboat_runtime.driver.engines import EngineWatch
from longboat_runtime.driver.environment_pods import EnvironmentPods
from longboat_runtime.driver.episode_outcomes import EpisodeOutcomes
from longboat_runtime.driver.evaluation import Evaluation
from longboat_runtime.driver.grading import Grading
from longboat_runtime.driver.loads import RoundLoads
from longboat_runtime.driver.observer import Observer
from longboat_runtime.driver.reshapes import Reshapes
from longboat_runtime.driver.reward_pools import RewardPools
from longboat_runtime.driver.rollout_pods import RolloutPods
from longboat_runtime.driver.sample_files import SampleFiles
from longboat_runtime.driver.watchdog import Watchdog

# Engines have their shape before they are evaluated.
OBSERVERS: Sequence[Callable[[Context], Observer]] = (
    Grading,
    RoundLoads,
    RewardPools,
    RolloutPods,
    EnvironmentPods,
    EpisodeOutcomes,
    EngineWatch,
    Reshapes,
    Evaluation,
    SampleFiles,
    Canaries,
    Audits,
    Watchdog,
)
