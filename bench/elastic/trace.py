"""How long responses are: the median goes up and down with the training, along a trace fixed here. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from longboat_runtime.samples import SampleId
from longboat_runtime.simulate.lengths import TwoLevel

PROMPTS = 16
GROUP_SIZE = 4
PROMPT_OVERCOMMIT = 1.25
SAMPLE_OVERCOMMIT = 1.25
# Short rounds of a cycle; a long one ends it, and takes what they deferred.
SHORT_ROUNDS = 4
ROUNDS_PER_CYCLE = SHORT_ROUNDS + 1
PROMPTS_PER_CYCLE = PROMPTS * ROUNDS_PER_CYCLE

PROMPT_TOKENS = 4
LONGEST = 508
MAX_SEQUENCES = 256
PROMPT_SIGMA = 0.6
SAMPLE_SIGMA = 0.5
# Median response tokens of each phase, and its cycles.
Phases = tuple[tuple[float, int], ...]
PHASES: Phases = ((14, 10), (116, 3), (14, 10))


@dataclass(frozen=True, slots=True)
class Trace:
    """Lengths of one seed, the same for every arm. `phases` are (median tokens, cycles)."""

    seed: int
    phases: Phases = PHASES

    @property
    def rounds(self) -> int:
        """Number of rounds of the whole trace."""
        return ROUNDS_PER_CYCLE * sum(cycles for _, cycles in self.phases)

    def phase(self, step: int) -> int:
        """Returns the phase, from 0, of a step, from 1: the last phase for steps beyond the trace."""
        return self._phase_of_cycle((step - 1) // ROUNDS_PER_CYCLE)

    def __call__(self, sample: SampleId) -> int:
        """Returns how many tokens a sample's response has. Its row tells the phase, as rows are drawn in order."""
        median, _ = self.phases[self._phase_of_cycle(sample.row // PROMPTS_PER_CYCLE)]
        return replace(_LENGTHS, median=median, seed=self.seed)(sample)

    def _phase_of_cycle(self, cycle: int) -> int:
        ends = 0
        for number, (_, cycles) in enumerate(self.phases):
            ends += cycles
            if cycle < ends:
                return number
        return len(self.phases) - 1


_LENGTHS = TwoLevel(1.0, PROMPT_SIGMA, SAMPLE_SIGMA, LONGEST)
