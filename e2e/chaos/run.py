"""A run: jobs live, faults come, and each is followed until the jobs that it hit train again."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.record import Recorder
from e2e.chaos import lives
from e2e.chaos.faults import UNREACHABLE, carry_out, persist
from e2e.chaos.lives import Life
from e2e.chaos.schedule import OF_ONE_JOB, Fault, choose, faults
from e2e.jobs import Object
from e2e.site import Site
from longboat_crds.rounds import RoundPolicyName

LOOK_SECONDS = 0.5
NEW_STEPS = 3
"""A job has recovered after this many new steps: the first ones may train samples that it had when the fault came."""


@dataclass
class Wound:
    """Tracks a job after a fault. `step` is the job's first known step after the fault, `seconds` is the time until it was well again."""

    life: Life
    step: int | None = None
    seconds: float | None = None
    outcome: str = ""

    def judge(self, over: float, now: float, patience: float) -> str:
        """Returns its outcome at `now`, given when the fault was over; empty while it is open. Times are on the monotonic clock."""
        if self.life.failed:
            return "failed"
        if self.step is None and self.life.looked_at > over:
            self.step = self.life.step
        if self.step is not None and self.life.step >= self.step + NEW_STEPS:
            self.seconds = round(now - over, 1)
            return "recovered"
        return "stuck" if now - over > patience else ""


@dataclass
class Incident:
    """Follows a fault and the jobs that it hit. `over` is when the harm was done, on the monotonic clock; None while it lasts."""

    fault: Fault
    wounds: list[Wound]
    doing: Future[str]
    over: float | None = None
    target: str = ""

    @property
    def closed(self) -> bool:
        """Whether the outcome is known for every job."""
        return self.over is not None and all(wound.outcome for wound in self.wounds)


@dataclass
class Run:
    """One run of the program, whose jobs play `episodes` or have single responses.

    Times are in seconds; `diagnosis` is the folder for what explains a failure.
    """

    site: Site
    seed: int
    seconds: float
    policies: list[RoundPolicyName]
    jobs: int
    patience: float
    episodes: bool
    recorder: Recorder
    diagnosis: Path
    audits: list[Object] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    _lives: list[Life] = field(default_factory=list)
    _open: list[Incident] = field(default_factory=list)
    _ending: list[Future[Object]] = field(default_factory=list)
    _pool: ThreadPoolExecutor = field(default_factory=ThreadPoolExecutor)
    _begun: int = 0
    _last: float = 0.0

    def go(self) -> None:
        """Runs until time is up, every fault has an outcome and every job is audited."""
        end = time.monotonic() + self.seconds
        coming = faults(self.seed)
        fault = next(coming)
        try:
            while time.monotonic() < end or self._lives or self._ending:
                self._follow_up()
                now = time.monotonic()
                self._replace_jobs(now, end)
                if now < end and self._begin_fault(fault, now):
                    fault = next(coming)
                time.sleep(LOOK_SECONDS)
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _follow_up(self) -> None:
        for life in self._lives:
            life.look()  # takes long while the API server is away
        now = time.monotonic()
        for incident in self._open:
            if incident.over is None and incident.doing.done():
                self._record_harm(incident, now)
            if incident.over is not None:
                for wound in incident.wounds:
                    if not wound.outcome and (outcome := wound.judge(incident.over, now, self.patience)):
                        self._settle(incident, wound, outcome)
            if incident.closed:
                self._record(incident)
        self._open = [incident for incident in self._open if not incident.closed]
        for ended in [future for future in self._ending if future.done()]:
            self._ending.remove(ended)
            self.audits.append(audit := ended.result())
            self.recorder.write("audit", **audit)
            judged = "clean" if lives.clean(audit) else f"NOT CLEAN, see {self.diagnosis}"
            self._say(f"{audit['job']}: {audit['steps']} steps, {audit['incarnations']} incarnations, {judged}")

    def _record_harm(self, incident: Incident, now: float) -> None:
        """Records that the harm is done, or that it could not be: its jobs are stuck then."""
        incident.over = now
        error = incident.doing.exception()
        if error is None:
            incident.target = incident.doing.result()
            self._say(f"#{incident.fault.number} {incident.fault.kind}: {incident.target}")
            return
        incident.target = f"{type(error).__name__}: {error}".splitlines()[0]
        for wound in incident.wounds:
            self._settle(incident, wound, "stuck")

    def _settle(self, incident: Incident, wound: Wound, outcome: str) -> None:
        wound.outcome = outcome
        name = wound.life.job.name
        if outcome == "recovered":
            self._say(f"#{incident.fault.number} {name} has recovered in {wound.seconds} s")
            return
        self._say(f"#{incident.fault.number} {name} is {outcome.upper()} {wound.life.failed}: {incident.target}")
        wound.life.failed = wound.life.failed or outcome
        file = self.diagnosis / f"{incident.fault.number}-{name}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        text = f"{incident.fault}\n{incident.target}\n"
        try:
            text += wound.life.job.describe()
        except UNREACHABLE as error:
            text += str(error)
        file.write_text(text)

    def _record(self, incident: Incident) -> None:
        fault = incident.fault
        self.outcomes += [wound.outcome for wound in incident.wounds]
        jobs = [
            {"job": w.life.job.name, "policy": w.life.policy.value, "step": w.step, "outcome": w.outcome, "seconds": w.seconds}
            for w in incident.wounds
        ]  # fmt: skip
        self.recorder.write(
            "fault", number=fault.number, fault=fault.kind.value, target=incident.target, overlaps=fault.overlaps, jobs=jobs
        )  # fmt: skip

    def _replace_jobs(self, now: float, end: float) -> None:
        """Ends jobs whose time is up or that won't go on, once their wounds are judged; begins others before `end` if there is room."""
        for life in list(self._lives):
            if not life.ready and not life.failed and now > life.began + self.patience:
                life.failed = f"fewer than {lives.FIRST_STEPS} steps within {self.patience:.0f} s of its start"
                self.outcomes.append("stuck")
                self._say(f"{life.job.name} is STUCK: {life.failed}")
            if (now > life.until or life.failed) and not self._wounds(life):
                self._lives.remove(life)
                self._ending.append(self._pool.submit(persist, partial(lives.end, life, self.diagnosis)))
        while now < end and len(self._lives) + len(self._ending) < self.jobs:
            policy = self.policies[self._begun % len(self.policies)]
            try:
                life = lives.begin(
                    self.site, policy, self._begun + 1, self.seed, min(now + self._share, end), episodes=self.episodes
                )
            except UNREACHABLE:
                return  # soon again
            self._begun += 1
            self._lives.append(life)
            self._say(f"{life.job.name} begins")

    @property
    def _share(self) -> float:
        """Seconds after which a job is to make room, so that every policy has its turn."""
        return self.seconds * min(1.0, self.jobs / len(self.policies))

    def _begin_fault(self, fault: Fault, now: float) -> bool:
        """Begins a fault unless its pause isn't over or the jobs that it would hit aren't well enough yet; returns whether it began.

        Of the faults that happen to every job at once, one waits until the harm of another is done.
        """
        if now < self._last + fault.pause:
            return False
        ready = [life for life in self._lives if life.ready and not life.failed and now < life.until]
        limit = 1 if fault.overlaps else 0
        well = [life for life in ready if len(self._wounds(life)) <= limit]
        if fault.kind in OF_ONE_JOB:
            hit = [choose(well, fault.job)] if well else []
        else:
            alone = all(incident.over is not None or incident.fault.kind in OF_ONE_JOB for incident in self._open)
            hit = well if well == ready and len(ready) == len(self._lives) and alone else []
        if not hit:
            return False
        self._last = now
        job = hit[0].job if fault.kind in OF_ONE_JOB else None
        doing = self._pool.submit(carry_out, self.site.cluster, fault, job)
        self._open.append(Incident(fault, [Wound(life) for life in hit], doing))
        return True

    def _wounds(self, life: Life) -> list[Wound]:
        open_ = (wound for incident in self._open for wound in incident.wounds if not wound.outcome)
        return [wound for wound in open_ if wound.life is life]

    def _say(self, what: str) -> None:
        bad = sum(outcome != "recovered" for outcome in self.outcomes)
        counts = f"{len(self.outcomes) - bad} recovered, {bad} not" if self.outcomes else "no fault yet"
        print(f"{time.strftime('%H:%M:%S')}  [{counts}]  {what}", flush=True)


def policies(word: str) -> list[RoundPolicyName]:
    """Reads the policies that `POLICY=` names: `all` of them, or one. Raises ValueError for any other word."""
    if word == "all":
        return list(RoundPolicyName)
    try:
        return [RoundPolicyName(word)]
    except ValueError:
        raise ValueError(f"POLICY={word}: write all, or one of {', '.join(RoundPolicyName)}") from None
