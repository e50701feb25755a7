"""The task: count down from a number under a name of two letters, as "kt04" → "kt03kt02kt01kt00".

Every symbol is one token. The number decides how long the answer is: log-normal (median 4, sigma 1, at most 60), so most answers
have about sixteen tokens and a few have 240. Letters and number make 40,560 different prompts, each with its own answer.
"""

import itertools
import math
import random
import string

LARGEST = 60
MEDIAN = 4
SYMBOLS = string.digits + string.ascii_lowercase


def number_of(prompt: str) -> int:
    """The number that a prompt counts down from."""
    return int(prompt[2:])


def draw(rng: random.Random, evenly: bool = False) -> str:
    """A prompt such as "kt04"; `evenly` gives every number the same chance."""
    drawn = rng.randint(1, LARGEST) if evenly else round(rng.lognormvariate(math.log(MEDIAN), 1.0))
    number = min(LARGEST, max(1, drawn))
    return f"{rng.choice(string.ascii_lowercase)}{rng.choice(string.ascii_lowercase)}{number:02}"


def answer(prompt: str) -> str:
    """The correct answer to a prompt."""
    return demonstration(prompt, random.Random(), slips=0.0)


def demonstration(prompt: str, rng: random.Random, slips: float) -> str:
    """An answer as somebody careless gives it: each number but the last is left out with probability `slips`."""
    said, number = "", number_of(prompt) - 1
    while number >= 0:
        said += f"{prompt[:2]}{number:02}"
        number -= 2 if number > 1 and rng.random() < slips else 1
    return said


def held_out(count: int, seed: int = 7) -> list[str]:
    """Distinct prompts that training never sees."""
    rng = random.Random(seed)
    prompts: dict[str, None] = {}
    while len(prompts) < count:
        prompts.setdefault(draw(rng))
    return list(prompts)


def training(count: int, excluded: list[str], seed: int = 0) -> list[str]:
    """Prompts as they are drawn, none of them in `excluded`; short ones recur."""
    rng = random.Random(seed)
    without = set(excluded)
    drawn = (draw(rng) for _ in itertools.count())
    return list(itertools.islice((prompt for prompt in drawn if prompt not in without), count))
