"""Reward of the GPU examples: whether the answer that a response ends with equals the row's `answer`."""

import re
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

# For reading an answer, and again for comparing it: together well below `timeoutSeconds` of the job. What takes longer is wrong.
SECONDS = 2
LATEX = [LatexExtractionConfig(boxed_match_priority=0)]
BRACES = re.compile(r"\\.|[{}]", re.DOTALL)

# Builds the parsers here, once, and not in every process that grades.
verify(
    parse(r"\boxed{1}", LATEX, parsing_timeout=60), parse(r"\boxed{2}", LATEX, parsing_timeout=60), timeout_seconds=60
)


def accuracy(completions: list[list[dict[str, str]]], answer: list[str], **columns: Any) -> list[float | None]:
    """Returns for each completion 1 if its answer is right, else 0; None if the row's own answer can't be read."""
    return [_score(completion[-1]["content"], right) for completion, right in zip(completions, answer, strict=True)]


def last_box(response: str) -> str | None:
    r"""Returns the last `\boxed{...}` of a response; None if there is none, or it isn't closed, or the response ends in its thoughts."""
    response = response.rpartition("</think>")[2]
    start = response.rfind(r"\boxed{")
    if start < 0 or "<think>" in response:
        return None
    depth = 0
    for match in BRACES.finditer(response, start + len(r"\boxed")):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0 and match[0] == "}":
            return response[start : match.end()]
    return None


def _score(response: str, answer: str) -> float | None:
    right = parse(rf"\boxed{{{answer}}}", LATEX, parsing_timeout=SECONDS)
    if not right:
        return None
    box = last_box(response)
    return float(box is not None and verify(right, parse(box, LATEX, parsing_timeout=SECONDS), timeout_seconds=SECONDS))
