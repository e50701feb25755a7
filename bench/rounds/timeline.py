"""`python -m bench.rounds.timeline`: draws short rounds and their long one, simulated with the step times of the last run, as `longboat timeline` does."""

from __future__ import annotations

from pathlib import Path

from bench.record import raw_file
from bench.rounds.drawn import distribution
from bench.rounds.predictions import Predictor
from bench.rounds.summary import last_run
from bench.rounds.tasks import task_named
from longboat_runtime.rounds.events import Event
from longboat_runtime.rounds.loop import Effects
from longboat_runtime.rounds.policies import open_policy
from longboat_runtime.simulate.simulation import Simulation, number_prompts
from longboat_runtime.simulate.site import Site
from longboat_runtime.timeline.bars import choose
from longboat_runtime.timeline.fold import fold
from longboat_runtime.timeline.picture import draw

PICTURE = Path(__file__).parents[2] / "docs" / "timeline.png"
TASK, ARM, SEED, ROUNDS = "device", "TailBatching-1.25", 0, "6-10"


class RecordedSimulation(Simulation):
    """A simulated job of the task, with all its events."""

    def __init__(self, site: Site) -> None:
        task = task_named(TASK)
        spec = task.spec(ARM, Path("/"), steps=task.steps, prompts=task.prompts, seed=SEED)
        self.events: list[Event] = []
        super().__init__(open_policy(spec), task.group_size, site, distribution(SEED), task.steps, number_prompts)

    def carry_out(self, event: Event, effects: Effects) -> None:
        self.events.append(event)
        super().carry_out(event, effects)


def write(path: Path) -> None:
    """Draws the same picture for the same results of the benchmark."""
    run, blocks = last_run(raw_file("rounds"), TASK)
    if run is None:
        raise ValueError(f"no run of task {TASK} is recorded")
    simulation = RecordedSimulation(Predictor(blocks, task_named(TASK), run["settings"]).site)
    while simulation.proceed():
        pass
    draw(choose(fold(simulation.events), ROUNDS), path, "simulated job")


if __name__ == "__main__":
    write(PICTURE)
