"""Responses as models give them to four kinds of tasks, right and wrong, made by a generator. The same for the same seed.

`python -m bench.grading.responses FILE` records those that the tests grade.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from longboat_graders.result import RewardSample
from tests.support.modules import module_at

QUICKSTART = Path(__file__).parents[2] / "examples/quickstart/base"
# How many of each are recorded: math-verify takes longest.
RECORDED = {"quickstart": 384, "gsm8k": 352, "math_dapo": 240, "accuracy": 64}


def quickstart(rng: random.Random) -> RewardSample:
    """Makes a countdown, with or without slips, sometimes cut short or run on."""
    task = _COUNTDOWN
    prompt = task.draw(rng)
    right, text = task.answer(prompt), task.demonstration(prompt, rng, rng.choice([0.0, 0.1, 0.5]))
    text = rng.choice([text, text, text[: rng.randint(0, len(text))], text + text[-4:]])
    return RewardSample(text, prompt, right, "8", {"prompt": prompt, "answer": right, "length": "8"}, tokens=len(text))


def gsm8k(rng: random.Random) -> RewardSample:
    """Makes a word problem's solution in steps, mostly with the answer behind four number signs."""
    name, thing = rng.choice(["Natalia", "Weng", "Betty", "Julie"]), rng.choice(["clips", "apples", "pages", "marbles"])
    first, times, price = rng.randint(12, 990), rng.randint(2, 9), rng.randint(2, 20)
    total = (first + first * times) * price
    steps = [
        f"{name} starts with {first} {thing}.",
        f"Later there are {times} times as many, which is {first} * {times} = <<{first}*{times}={first * times}>>{first * times}.",
        f"Together that makes {first} + {first * times} = {first + first * times} {thing}.",
        f"At {price} dollars each, the total is {first + first * times} * {price} = {total} dollars.",
    ]
    answer = total + rng.choice([0, 0, 0, 1, -price, first])
    steps += ["Let me check that again. " + step for step in rng.choices(steps, k=rng.randint(0, 12))]
    end = rng.choice(
        [f"#### {answer}", f"#### {answer}", f"#### {answer:,}", f"#### ${answer}", f"The answer is {answer}.", "####"]
    )
    text = "\n".join([*steps, end])
    question = f"How many dollars are {name}'s {thing} worth?"
    columns = {"data_source": "openai/gsm8k", "prompt": question, "extra_info": {"index": first, "split": "train"}}
    return RewardSample(text, question, str(total), "openai/gsm8k", columns, tokens=len(text) // 4)


def math_dapo(rng: random.Random) -> RewardSample:
    """Makes reasoning that mostly ends with an answer, after `Answer:` or in a box."""
    m, n = rng.randint(2, 40), rng.randint(3, 60)
    right = str(m * n + m)
    answer = rng.choice([right, right, str(m * n), rf"\frac{{{m}}}{{{n}}}", f"{right} \\text{{ units}}", "unclear"])
    thoughts = [f"We need the sum over k of {m}, for k from 1 to {n}, and then one more {m}."]
    thoughts += [f"Step {k}: the partial sum is ${m} \\cdot {k} = {m * k}$." for k in range(1, rng.randint(3, 25))]
    end = rng.choice(
        [
            f"Answer: {answer}",
            f"Answer: ${answer}$",
            f"**Answer:** \\boxed{{{answer}}}",
            f"So it is \\boxed{{{answer}}}.",
            "",
        ]
    )
    text = "\n\n".join([*thoughts, end])
    columns = {"data_source": "math_dapo", "prompt": "Find the sum.", "extra_info": {"index": m}}
    return RewardSample(text, "Find the sum.", right, "math_dapo", columns, tokens=len(text) // 4)


def accuracy(rng: random.Random) -> RewardSample:
    """Makes a derivation that mostly ends with an answer in LaTeX, such as a number, root, interval, set, polynomial or matrix."""
    a, b, c = rng.randint(2, 30), rng.randint(2, 30), rng.randint(2, 12)
    right, alike, wrong = rng.choice(
        [
            (rf"\frac{{{a}}}{{{b}}}", rf"\frac{{{2 * a}}}{{{2 * b}}}", rf"\frac{{{b}}}{{{a + 1}}}"),
            (rf"\frac{{1}}{{{2 ** (c % 4 + 1)}}}", str(1 / 2 ** (c % 4 + 1)), "0.3"),
            (rf"{a}\sqrt{{{b}}}", rf"\sqrt{{{b}}} \cdot {a}", rf"\sqrt{{{a * b}}}"),
            (rf"({a}, {a + b}]", rf"({a}, {a + b}]", rf"[{a}, {a + b})"),
            (rf"\{{{a}, {b}, {c}\}}", rf"\{{{c}, {a}, {b}\}}", rf"\{{{a}, {c}\}}"),
            (rf"x^{{{c}}} + {a}x", rf"{a}x + x^{{{c}}}", rf"x^{{{c}}} - {a}x"),
            (rf"(x+{a})(x-{b})", rf"x^2 + {a - b}x - {a * b}", rf"x^2 - {a * b}"),
            (rf"\begin{{pmatrix}} {a} & {b} \\ 0 & {c} \end{{pmatrix}}",) * 2
            + (rf"\begin{{pmatrix}} {a} & 0 \\ 0 & {c} \end{{pmatrix}}",),
            (f"{a * 1000 + b}", f"{a * 1000 + b:,}", f"{a}"),
            (rf"{a}\%", f"{a / 100}", f"{b}"),
        ]
    )
    answer = rng.choice([right, alike, wrong])
    thoughts = [f"Let $f(x) = {a}x^2 - {b}x + {c}$; completing the square gives $({b})^2 - 4 \\cdot {a} \\cdot {c}$."]
    thoughts += [f"For $k = {k}$ this is ${a * k * k - b * k + c}$." for k in range(rng.randint(1, 15))]
    end = rng.choice(
        [
            rf"Thus \boxed{{{answer}}}.",
            rf"The answer is \boxed{{{answer}}}",
            f"The answer is ${answer}$.",
            "I am not sure.",
        ]
    )
    text = "\n".join([*thoughts, end])
    messages = [{"role": "user", "content": "What is it?"}]
    columns = {"solution": f"${right}$", "prompt": messages}
    return RewardSample(text, "What is it?", None, "", columns, messages, tokens=len(text) // 4)


_COUNTDOWN = module_at(QUICKSTART / "countdown.py")
MAKERS: dict[str, Callable[[random.Random], RewardSample]] = {
    "quickstart": quickstart,
    "gsm8k": gsm8k,
    "math_dapo": math_dapo,
    "accuracy": accuracy,
}


def responses(task: str, count: int, seed: int = 0) -> Iterator[RewardSample]:
    """Yields `count` responses to a task of MAKERS, the same for the same seed."""
    rng = random.Random(f"{task} {seed}")
    return (MAKERS[task](rng) for _ in range(count))


def main(path: Path) -> None:
    """Records the responses of all tasks as JSON lines, compressed by gzip."""
    lines = [
        json.dumps({"task": task, "sample": asdict(sample)}, sort_keys=True)
        for task, count in RECORDED.items()
        for sample in responses(task, count)
    ]
    path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
