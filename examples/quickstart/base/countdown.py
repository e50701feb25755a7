"""The task: count down from a number, as "kt04>" → "03 02 01 00".

Two letters name the list and make the prompts distinct (67,600 of them); the number decides how long the answer is. Numbers are
log-normal (median 8, sigma 1, at most 99), so most answers are short and a few are thirty times as long.
"""

import random
import string

LARGEST = 99
SYMBOLS = string.digits + string.ascii_lowercase + "> "


def draw(rng: random.Random) -> str:
    """A prompt such as "kt04>"."""
    number = min(LARGEST, max(1, round(rng.lognormvariate(2.08, 1.0))))
    return f"{rng.choice(string.ascii_lowercase)}{rng.choice(string.ascii_lowercase)}{number:02}>"


def answer(prompt: str) -> str:
    """The right answer to a prompt."""
    return " ".join(f"{number:02}" for number in range(int(prompt[2:4]) - 1, -1, -1))


def held_out(count: int, seed: int = 7) -> list[str]:
    """Distinct prompts that training never sees."""
    rng = random.Random(seed)
    prompts: dict[str, None] = {}
    while len(prompts) < count:
        prompts.setdefault(draw(rng))
    return list(prompts)


def training(count: int, excluded: list[str], seed: int = 0) -> list[str]:
    """Distinct prompts, none of them in `excluded`."""
    rng = random.Random(seed)
    without = set(excluded)
    prompts: dict[str, None] = {}
    while len(prompts) < count:
        prompt = draw(rng)
        if prompt not in without:
            prompts.setdefault(prompt)
    return list(prompts)
