"""Which sample begins in which pod: whatever samples are submitted, withdrawn, played and lost while pods come and go."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from longboat_runtime.episodes.slots import EpisodeSlots
from longboat_runtime.samples import SampleId

POOLS = ("games", "tools")
SAMPLES = [SampleId(0, row, 0, index) for row in range(6) for index in range(3)]


class Playing(RuleBasedStateMachine):
    """Every sample is in one place. The model keeps what the slots are told, and checks what they choose."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = EpisodeSlots()
        self.waiting: dict[SampleId, str] = {}
        self.playing: dict[SampleId, str] = {}
        self.lost: set[SampleId] = set()
        self.order: list[tuple[int, int, int]] = []

    @rule(row=st.integers(0, 5), pool=st.sampled_from(POOLS))
    def submit(self, row: int, pool: str) -> None:
        for sample in [sample for sample in SAMPLES if sample.row == row]:
            if sample not in self.waiting and sample not in self.playing and sample not in self.lost:
                self.slots.submit(sample, pool)
                self.waiting[sample] = pool
                if sample[:3] not in self.order:
                    self.order.append(sample[:3])

    @precondition(lambda self: self.lost)
    @rule(pool=st.sampled_from(POOLS))
    def submit_again(self, pool: str) -> None:
        for sample in sorted(self.lost):
            self.slots.submit(sample, pool)
            self.waiting[sample] = pool
        self.lost.clear()

    @rule(name=st.sampled_from("abc"), pool=st.sampled_from(POOLS), slots=st.integers(1, 3))
    def join(self, name: str, pool: str, slots: int) -> None:
        if name not in self.slots.pods:
            self.slots.join(name, pool, slots)

    @rule(name=st.sampled_from("abc"))
    def leave(self, name: str) -> None:
        if name in self.slots.pods:
            self.slots.leave(name)
            for sample in [sample for sample, pod in self.playing.items() if pod == name]:
                del self.playing[sample]
                self.lost.add(sample)

    @rule(name=st.sampled_from("abc"), is_open=st.booleans())
    def open(self, name: str, is_open: bool) -> None:
        if name in self.slots.pods:
            self.slots.pods[name].open = is_open

    @precondition(lambda self: self.playing)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        sample = data.draw(st.sampled_from(sorted(self.playing)))
        self.slots.free(self.playing.pop(sample))
        self.slots.end(sample)
        self.forget(sample)

    @rule(sample=st.sampled_from(SAMPLES))
    def withdraw(self, sample: SampleId) -> None:
        assert self.slots.withdraw(sample) == (sample in self.waiting)
        if self.waiting.pop(sample, None):
            self.forget(sample)

    def forget(self, sample: SampleId) -> None:
        if not any(other[:3] == sample[:3] for other in (*self.waiting, *self.playing, *self.lost)):
            self.order.remove(sample[:3])

    @rule()
    def begin(self) -> None:
        free = {name: pod.slots - pod.taken if pod.open else 0 for name, pod in self.slots.pods.items()}
        begun = self.slots.begin()
        assert len(begun) == len({sample for sample, _ in begun})
        for sample, name in begun:
            pod = self.slots.pods[name]
            assert pod.pool == self.waiting.pop(sample), "a sample plays in its pool"
            free[name] -= 1
            assert free[name] >= 0, "each has a free slot of an open pod"
            self.playing[sample] = name
        for pool in POOLS:
            rest = [sample for sample, own in self.waiting.items() if own == pool]
            left = sum(count for name, count in free.items() if self.slots.pods[name].pool == pool)
            assert not rest or not left, "none waits while a slot is free"
            chosen = [sample for sample, name in begun if self.slots.pods[name].pool == pool]
            ranked = sorted([*chosen, *rest], key=lambda sample: (self.order.index(sample[:3]), sample))
            assert chosen == ranked[: len(chosen)], "groups come in their order"

    @invariant()
    def each_slot_is_counted(self) -> None:
        taken = Counter(self.playing.values())
        assert {name: pod.taken for name, pod in self.slots.pods.items()} == {
            name: taken[name] for name in self.slots.pods
        }
        assert self.slots.waiting == self.waiting


TestSlots = Playing.TestCase
TestSlots.settings = settings(max_examples=200, stateful_step_count=40)


def test_a_sample_begins_where_most_is_free() -> None:
    slots = EpisodeSlots()
    slots.join("a", "games", 4)
    slots.join("b", "games", 2)
    for sample in SAMPLES[:6]:
        slots.submit(sample, "games")
    assert [pod for _, pod in slots.begin()] == ["a", "b", "a", "a", "b", "a"]
