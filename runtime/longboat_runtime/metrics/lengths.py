"""Reports the audit of response lengths, as metrics and as a line for people. Pure."""

from __future__ import annotations

from longboat_runtime.rounds.audit.audit_rounds import AuditRounds
from longboat_runtime.rounds.audit.length_bias import LengthAudit, LengthBias
from longboat_runtime.rounds.audit.paired import Estimate


def length_metrics(audit: LengthAudit, prefix: str = "tail/length_bias") -> dict[str, float]:
    """Returns `PREFIX/*` over all prompts, also `PREFIX/DOMAIN/*` where there are several domains."""
    metrics = _metrics(prefix, audit.overall)
    if len(audit.domains) > 1:
        for domain, bias in audit.domains.items():
            metrics |= _metrics(f"{prefix}/{domain}", bias)
    return metrics


def audit_rounds_metrics(rounds: AuditRounds) -> dict[str, float]:
    """Returns `tail/audit_rounds/*`."""
    values = {"prompts": float(rounds.prompts), "trained": float(rounds.trained), **_estimates(rounds)}
    return {f"tail/audit_rounds/{name}": value for name, value in values.items()}


def length_line(bias: LengthBias | AuditRounds) -> str:
    """Returns a line such as `mean 0.98 (0.95 to 1.01), KS 0.02 (0.00 to 0.05), 640 prompts, 20 % launched again`.

    The last part is left out for audit rounds; without an estimate the line is such as `unresolved, 12 prompts`.
    """
    if bias.mean_ratio is None or bias.ks is None:
        return f"unresolved, {bias.prompts} prompts"
    again = f", {100 * bias.relaunched:.0f} % launched again" if isinstance(bias, LengthBias) else ""
    return f"mean {_interval(bias.mean_ratio)}, KS {_interval(bias.ks)}, {bias.prompts} prompts{again}"


def _metrics(prefix: str, bias: LengthBias) -> dict[str, float]:
    values = {
        "prompts": float(bias.prompts),
        "redraw_rate": bias.relaunched,
        "censored": bias.censored,
        "modelled": bias.modelled,
        **_estimates(bias),
    }
    return {f"{prefix}/{name}": value for name, value in values.items()}


def _estimates(bias: LengthBias | AuditRounds) -> dict[str, float]:
    values: dict[str, float] = {}
    for name, estimate in (("ks", bias.ks), ("mean_ratio", bias.mean_ratio)):
        if estimate is not None:
            values |= {name: estimate.value, f"{name}/low": estimate.low, f"{name}/high": estimate.high}
    return values


def _interval(estimate: Estimate) -> str:
    return f"{estimate.value:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"
