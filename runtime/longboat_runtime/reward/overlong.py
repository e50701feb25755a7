"""The former place of `longboat_graders.overlong`, for rewards that name it; gone with the next release."""

import warnings

from longboat_graders.overlong import soft_overlong

__all__ = ["soft_overlong"]

warnings.warn("longboat_runtime.reward.overlong is now longboat_graders.overlong", FutureWarning, stacklevel=2)
