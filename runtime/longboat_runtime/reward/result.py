"""The former place of `longboat_graders.result`, for reward functions that were written for it; gone with the next release."""

import warnings

from longboat_graders.result import RewardResult, RewardSample

__all__ = ["RewardResult", "RewardSample"]

warnings.warn("longboat_runtime.reward.result is now longboat_graders.result", FutureWarning, stacklevel=2)
