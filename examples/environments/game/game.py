"""A game for a language model: guess a number. It needs nothing but Python; `reset` and `step` follow gymnasium's convention."""

import random
import re


class Guess:
    """The model has as many guesses as halving takes; the answer to each is `higher` or `lower`."""

    def reset(self, seed: int, options: dict) -> tuple[str, dict]:
        """Begins a game: `options` are the columns of the row, and `seed` decides the number."""
        self.largest = options["largest"]
        self.number = random.Random(seed).randint(1, self.largest)
        self.left = self.largest.bit_length()
        return f"I think of a number from 1 to {self.largest}. Guess it: answer with a number alone.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
        """Returns what the model sees next, the reward of this turn, whether the game is over, and whether it was cut off."""
        self.left -= 1
        numbers = re.findall(r"\d+", action)
        guess = int(numbers[-1]) if numbers and len(numbers[-1]) < 10 else None
        if guess == self.number:
            return "Right!", 1.0, True, False, {}
        if self.left == 0:
            return f"It was {self.number}.", 0.0, True, False, {}
        if guess is None:
            return "That is no number.", 0.0, False, False, {}
        return "higher" if guess < self.number else "lower", 0.05, False, False, {}
