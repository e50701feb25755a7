"""What doesn't fit, and the change that makes it fit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longboat_crds.job import RLJobSpec
from longboat_crds.quantities import in_bytes
from longboat_crds.reasons import Reason
from longboat_runtime.checkpoint.export import FILE_BYTES
from longboat_runtime.imports import uncollected
from longboat_runtime.plan import needs
from longboat_runtime.plan.capacity import CONTAINERS, Capacity, claim_size
from longboat_runtime.plan.figures import Figures
from longboat_runtime.plan.fit import MARGIN, Case, DoesNotFit, Judgement, Tracer, judge, quantity, refusal
from longboat_runtime.plan.needs import DEVICE_OVERHEAD, Resource, links
from longboat_runtime.plan.trace import Traces
from tests.plan.planned import GIB, MIB, enlarged, large_figures, make_case, make_spec, rough_figures, write_config

ROOMY = Capacity(
    80 * GIB,
    dict.fromkeys(CONTAINERS, GIB),
    dict.fromkeys(("rollout", "trainer"), 16 * GIB),
    8 * GIB,
)


def judged(spec: RLJobSpec, capacity: Capacity, tracer: Tracer = rough_figures) -> tuple[Case, Judgement]:
    case = make_case(spec, capacity=replace(capacity, claim=claim_size(spec.checkpoint)))
    return case, judge(case, tracer)


def all_of(judgement: Judgement) -> list[DoesNotFit]:
    return [*judgement.problems, *judgement.warnings]


TEMPLATE, SMALL = "runtime spec.roles.{}.template.spec.", 100 * MIB
MEMORY, SHARED_MEMORY = "containers[trainer].resources.limits.memory", "volumes[shm].emptyDir.sizeLimit"
# Each limit alone: what there is, fields of the job, and the resource, role and field of the problem.
LIMITS: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[Resource, str, str]]] = {
    "device": (
        {"device": DEVICE_OVERHEAD + 6 * GIB},
        {"trainer": {"gradientCheckpointing": False}},
        (Resource.DEVICE, "trainer", "spec.trainer.gradientCheckpointing"),
    ),
    "KV cache": (
        {},
        {"rollout": {"kvCache": "256Ki"}},
        (Resource.KV_CACHE, "rollout", "spec.rollout.kvCache"),
    ),
    "claim": (
        {},
        {"checkpoint": {"volume": {"size": "1Mi"}}},
        (Resource.CLAIM, "trainer", "spec.checkpoint.volume.size"),
    ),
    "host memory": (
        {"memory": {"trainer": SMALL}},
        {},
        (Resource.HOST_MEMORY, "trainer", TEMPLATE.format("trainer") + MEMORY),
    ),
}
LIMITS |= {
    f"shm of {role}": (
        {"shared_memory": {role: SMALL}},
        {},
        (Resource.SHARED_MEMORY, role, TEMPLATE.format(role) + SHARED_MEMORY),
    )
    for role in CONTAINERS
}


@pytest.mark.parametrize("limit", LIMITS)
def test_each_limit_is_found_and_its_change_makes_the_job_fit(limit: str) -> None:
    less, sections, expected = LIMITS[limit]
    trainer = {"maxTokensPerBin": 2000, **sections.get("trainer", {})}
    spec = make_spec(Path("/model"), model={"maxLength": 2000}, **sections | {"trainer": trainer})
    case, judgement = judged(spec, replace(ROOMY, **less), large_figures)
    [problem] = judgement.problems
    assert (problem.need.resource, problem.need.role, problem.field) == expected
    error = refusal(judgement.problems)
    assert (error.reason, error.field) == (Reason.DOES_NOT_FIT, problem.field)
    assert problem.field in error.message
    assert all_of(judge(case.changed(problem.change), large_figures)) == []


def test_a_bin_that_is_too_small_is_refused() -> None:
    spec = make_spec(Path("/model"))
    with pytest.raises(ValueError, match="raise maxTokensPerBin"):
        make_spec(Path("/model"), trainer={"maxTokensPerBin": 20})
    small = spec.model_copy(update={"trainer": spec.trainer.model_copy(update={"max_tokens_per_bin": 20})})
    _, judgement = judged(small, Capacity())
    [problem] = judgement.problems
    assert problem.change == {"spec.trainer.maxTokensPerBin": 33}


def test_a_job_with_room_has_no_problem() -> None:
    spec = make_spec(Path("/model"), model={"maxLength": 2000}, trainer={"maxTokensPerBin": 2000})
    _, judgement = judged(spec, ROOMY)
    assert all_of(judgement) == []
    assert all(need.fits for need in judgement.needs)


def test_what_nobody_gives_is_not_judged() -> None:
    case = make_case(make_spec(Path("/model")), capacity=Capacity())
    judgement = judge(case, rough_figures)
    assert all_of(judgement) == []
    assert {need.resource for need in judgement.needs if need.available is None} == {
        Resource.DEVICE,
        Resource.KV_CACHE,
        Resource.SHARED_MEMORY,
        Resource.HOST_MEMORY,
        Resource.CLAIM,
    }


def test_a_device_that_holds_no_model_has_no_change() -> None:
    _, judgement = judged(make_spec(Path("/model")), replace(ROOMY, device=MIB))
    [problem] = judgement.problems
    assert (problem.field, problem.change) == ("spec.model.path", {})
    assert "no setting makes it fit" in problem.message


@pytest.mark.parametrize(("device", "recomputed"), [(8 * GIB, False), (DEVICE_OVERHEAD + 6 * MIB, True)])
def test_layers_are_recomputed_where_a_bin_does_not_fit_otherwise(device: int, recomputed: bool) -> None:
    spec = make_spec(Path("/model"), trainer={"maxTokensPerBin": 2000, "gradientCheckpointing": None})
    _, judgement = judged(spec, replace(ROOMY, device=device, engine_device=None))
    assert judgement.recomputed is recomputed
    assert all_of(judgement) == []


def test_more_devices_of_a_pod_need_more_of_its_host() -> None:
    one, eight = (
        judged(make_spec(Path("/model"), trainer={"replicas": 8 // devices, "devicesPerPod": devices}), ROOMY)[1]
        for devices in (1, 8)
    )
    [of_one], [of_eight] = (
        [need for need in judgement.needs if (need.resource, need.role) == (Resource.HOST_MEMORY, "trainer")]
        for judgement in (one, eight)
    )
    for part in ("processes (assumed)", "snapshot"):
        assert of_eight.parts[part] == 8 * of_one.parts[part], part
    for part in ("/dev/shm", "export"):
        assert of_eight.parts[part] == of_one.parts[part], part
    assert of_eight.parts["published weights"] > of_one.parts["published weights"], "a pod keeps an equal part of them"
    assert (of_one.fits, of_eight.fits) == (True, False)
    for resource in (Resource.DEVICE, Resource.SHARED_MEMORY, Resource.CLAIM):
        assert [need for need in one.needs if need.resource is resource] == [
            need for need in eight.needs if need.resource is resource
        ]


def test_fewer_copies_of_the_model_are_cheaper_than_more_pods() -> None:
    trainer = {"replicas": 4, "replicateDegree": 4, "maxTokensPerBin": 33}
    spec = make_spec(Path("/model"), trainer=trainer | {"offloadActivations": True})
    need = rough_figures(spec).peak
    _, judgement = judged(spec, replace(ROOMY, device=DEVICE_OVERHEAD + need - 1))
    [problem] = all_of(judgement)
    assert problem.change == {"spec.trainer.replicateDegree": 2}


def test_copies_take_memory_of_devices_and_none_of_the_claim() -> None:
    one, four = (
        judged(make_spec(Path("/model"), trainer={"replicas": 8, "replicateDegree": copies}), ROOMY)[1]
        for copies in (1, 4)
    )
    assert four.figures.weights == 4 * one.figures.weights
    assert four.needs[-1].resource is Resource.CLAIM
    assert four.needs[-1].needed == pytest.approx(one.needs[-1].needed, rel=0.001)


LINKS = {
    # One pod, several pods, a copy in each pod, copies of several pods, and pods of one device.
    (1, 8, 1): {"within a pod": 7 / 8},
    (2, 8, 1): {"within a pod": 15 / 16, "between pods": 15 / 16},
    (2, 8, 2): {"within a pod": 7 / 8, "between copies": 8 * 2 * (1 / 2) / 8},
    (4, 8, 2): {"within a pod": 15 / 16, "between pods": 15 / 16, "between copies": 8 * 2 * (1 / 2) / 16},
    (8, 1, 1): {"between pods": 7 / 8},
    (8, 1, 8): {"between copies": 2 * (7 / 8)},
    (1, 1, 1): {},
}


@pytest.mark.parametrize("shape", LINKS)
def test_bytes_are_counted_by_link(shape: tuple[int, int, int]) -> None:
    """Of a model with 10^9 bytes of weights and as many of gradients."""
    pods, devices, copies = shape
    trainer = {"replicas": pods, "devicesPerPod": devices, "replicateDegree": copies}
    shards = pods * devices // copies
    moved = 10**9 * (shards - 1) / shards
    spec = make_spec(Path("/model"), trainer=trainer)
    figures = replace(rough_figures(spec), gathered=moved, scattered=moved, reduced=10**9 / shards)
    found = {}
    for link, nbytes in links(spec, figures).items():
        place = link.split(":")[0]
        if place.startswith(("within", "between")):
            assert found.setdefault(place, nbytes) == nbytes, link
    assert found == pytest.approx({place: 10**9 * share for place, share in LINKS[shape].items()})


def specs(tokens: st.SearchStrategy[int]) -> st.SearchStrategy[dict[str, dict[str, Any]]]:
    """Draws sections of a spec; `tokens` are those of a sequence and of a bin."""
    return st.fixed_dictionaries(
        {
            "model": st.fixed_dictionaries({}, optional={"maxLength": tokens.filter(lambda length: length >= 256)}),
            "rollout": st.builds(
                lambda cache, memory, tensor, drawn, fixed: {
                    "sampling": {"maxTokens": drawn},
                    "tensorParallel": tensor,
                    **({"kvCache": cache} if cache else {"deviceMemory": memory} if memory else {}),
                    "parallelism": {"maxTensorParallel": tensor} if fixed else {},
                },
                st.none() | st.integers(1, 64).map("{}Mi".format),
                st.none() | st.integers(1, 8192).map("{}Mi".format),
                st.sampled_from([1, 2]),
                st.sampled_from([16, 250]),
                st.booleans(),
            ),
            "trainer": st.fixed_dictionaries(
                {
                    "replicas": st.sampled_from([4, 16]),
                    "devicesPerPod": st.sampled_from([1, 8]),
                    "replicateDegree": st.sampled_from([1, 4]),
                    "maxTokensPerBin": tokens,
                    "gradientCheckpointing": st.sampled_from([True, False, None]),
                    "compile": st.just(False),
                },
                optional={"offloadActivations": st.just(True)},
            ),
            "checkpoint": st.fixed_dictionaries(
                {
                    "keep": st.integers(1, 20),
                    "volume": st.fixed_dictionaries({"size": st.integers(1, 100).map("{}Mi".format)}),
                    "export": st.booleans(),
                },
                optional={"exportEverySteps": st.integers(1, 10)},
            ),
        }
    )


CAPACITIES = st.builds(
    Capacity,
    st.integers(DEVICE_OVERHEAD + 2 * GIB, DEVICE_OVERHEAD + 32 * GIB),
    st.fixed_dictionaries({role: st.integers(0, 512 * MIB) for role in CONTAINERS}),
    st.fixed_dictionaries({role: st.integers(0, 8 * GIB) for role in ("rollout", "trainer")}),
    st.none() | st.integers(64 * MIB, GIB),
)


def check_that_changes_fit(
    sections: dict[str, dict[str, Any]], capacity: Capacity, model: Path, tracer: Tracer
) -> None:
    trainer, longest = dict(sections["trainer"]), sections["model"].get("maxLength", 0)
    if trainer["gradientCheckpointing"] is False:
        trainer.pop("offloadActivations", None)
    least = max(longest, sections["rollout"]["sampling"]["maxTokens"] + 1)
    sections = sections | {"trainer": trainer | {"maxTokensPerBin": max(least, trainer["maxTokensPerBin"])}}
    case, judgement = judged(make_spec(model, **sections), capacity, tracer)
    assert all(problem.need.exceeds for problem in judgement.problems)
    assert not any(problem.need.fits for problem in judgement.warnings)
    if any(not problem.change for problem in all_of(judgement)):
        return
    for problem in all_of(judgement):
        case = case.changed(problem.change)
    assert all_of(judge(case, tracer)) == []


@settings(max_examples=200)
@given(specs(st.integers(16, 4000)), CAPACITIES)
def test_the_changes_that_are_named_make_drawn_jobs_fit(
    sections: dict[str, dict[str, Any]], capacity: Capacity
) -> None:
    check_that_changes_fit(sections, capacity, Path("/model"), large_figures)


@pytest.mark.extended
def test_the_changes_that_are_named_make_traced_jobs_fit(tmp_path: Path) -> None:
    with uncollected():  # each trace collects garbage several times
        model, traces = write_config(tmp_path, "small"), Traces()

    # Few different bins, so that one trace serves many specs: each takes seconds.
    @settings(max_examples=200)
    @given(specs(st.sampled_from([300, 1000, 4000])), CAPACITIES)
    def check(sections: dict[str, dict[str, Any]], capacity: Capacity) -> None:
        check_that_changes_fit(sections, capacity, model, lambda spec: enlarged(traces(spec)))

    check()


@given(st.integers(0, 2**50), st.sampled_from([MIB, GIB]))
def test_a_quantity_is_not_below_what_is_needed(nbytes: int, unit: int) -> None:
    assert nbytes <= in_bytes(quantity(nbytes, unit)) < nbytes + unit


def test_what_only_an_assumed_number_decides_is_a_warning() -> None:
    spec = make_spec(Path("/model"))
    peak = large_figures(spec).peak
    for device, certain in ((peak - 1, True), (peak, False), (peak + DEVICE_OVERHEAD - 1, False)):
        _, judgement = judged(spec, replace(ROOMY, device=device, engine_device=None), large_figures)
        problems, others = judgement.problems, judgement.warnings
        [problem] = problems if certain else others
        assert problem.need.resource is Resource.DEVICE
        assert not (others if certain else problems)
        assert ("3.0 GiB of what it needs are assumed" in problem.message) is not certain


def test_the_changes_for_warnings_end_no_job() -> None:
    # Offloading, which would take more host memory than there is, is needed only if the assumed overhead is.
    spec = make_spec(Path("/model"), model={"maxLength": 4000}, trainer={"maxTokensPerBin": 4000})
    figures = large_figures(spec)
    host = needs.host_need(spec, figures, "trainer", ROOMY).needed
    tight = replace(ROOMY, device=figures.peak + DEVICE_OVERHEAD - MIB, memory={"trainer": host})
    _, judgement = judged(spec, tight, large_figures)
    assert judgement.problems == []
    assert [(warning.need.resource, warning.change) for warning in judgement.warnings] == [
        (Resource.DEVICE, {"spec.trainer.offloadActivations": True}),
        (Resource.HOST_MEMORY, {judgement.warnings[1].field: quantity(host + 64 * 2 * 4000 * 2, GIB)}),
    ]


@pytest.mark.parametrize(
    ("size", "started", "claim_name", "change"),
    [
        (30, False, None, {"spec.checkpoint.volume.size": "1Gi"}),
        (30, True, None, {"spec.checkpoint.keep": 14}),
        (30, True, "mine", {"spec.checkpoint.keep": 14}),
        (3, True, None, {"spec.checkpoint.volume.size": "1Gi"}),
        (3, True, "mine", {}),
    ],
)
def test_a_claim_that_exists_keeps_its_size(
    size: int, started: bool, claim_name: str | None, change: dict[str, Any]
) -> None:
    checkpoint = {"keep": 20, "claimName": claim_name, "export": False}
    spec = make_spec(Path("/model"), checkpoint=checkpoint, rounds={"steps": 1000})
    case = replace(make_case(spec, capacity=replace(ROOMY, claim=size * MIB)), started=started)
    [problem] = judge(case, rough_figures).problems
    assert problem.change == change
    assert ("can't be changed once a job has started" in problem.message) is (
        "spec.checkpoint.volume.size" in change and started
    )
    if not change:
        assert problem.field == "spec.checkpoint.claimName"
        assert problem.message.endswith("use a larger claim")
    if "spec.checkpoint.keep" in change:
        for keep, fits in ((14, True), (15, False)):
            changed = case.changed({"spec.checkpoint.keep": keep})
            assert (judge(changed, rough_figures).problems == []) is fits


@pytest.mark.parametrize(("steps", "certain"), [(10, False), (11, False), (21, True)])
def test_checkpoints_that_a_short_job_never_has_end_it_not(steps: int, certain: bool) -> None:
    spec = make_spec(Path("/model"), checkpoint={"export": False}, rounds={"steps": steps})
    room = 5 * rough_figures(spec).snapshot // 2
    judgement = judge(make_case(spec, capacity=replace(ROOMY, claim=room)), rough_figures)
    [problem] = all_of(judgement)
    assert problem.need.resource is Resource.CLAIM
    assert bool(judgement.problems) is certain


def test_recomputation_is_chosen_where_a_bin_hardly_fits() -> None:
    spec = make_spec(Path("/model"), trainer={"gradientCheckpointing": None})
    peak = rough_figures(spec).peak
    chosen = []
    for size in (peak, peak + peak // MARGIN - 1, peak + peak // MARGIN):
        _, judgement = judged(spec, replace(ROOMY, device=DEVICE_OVERHEAD + size))
        assert judgement.problems == []
        chosen.append(judgement.recomputed)
    assert chosen == [True, True, False]


def test_a_cache_that_weights_leave_no_room_for_becomes_what_they_leave() -> None:
    spec = make_spec(Path("/model"), model={"maxLength": 64}, rollout={"kvCache": "64Mi"})
    case, judgement = judged(spec, replace(ROOMY, engine_device=32 * MIB))
    [problem] = judgement.problems
    [(field, value)] = problem.change.items()
    assert field == "spec.rollout.kvCache"
    assert 26 * MIB < in_bytes(value) < 32 * MIB * 9 // 10
    assert judge(case.changed(problem.change), rough_figures).problems == []


def test_no_change_is_named_that_the_api_refuses() -> None:
    # Sequences as long as the model allows fit into no cache, but shorter ones do: not longer than a bin, and with room for a prompt.
    rollout = {"deviceMemory": "8Mi", "parallelism": {"maxTensorParallel": 1}}
    spec = make_spec(Path("/model"), trainer={"maxTokensPerBin": 1000}, rollout=rollout)
    case, judgement = judged(spec, replace(ROOMY, engine_device=8 * MIB))
    [problem] = judgement.problems
    assert problem.change == {"spec.model.maxLength": 1000}
    assert judge(case.changed(problem.change), rough_figures).problems == []
    assert make_case(spec).changed({"spec.rollout.tensorParallel": 2}) is None


@pytest.mark.parametrize(("replicas", "most"), [(2, 128), (1000, 4000)])
def test_more_ranks_are_tried_within_what_the_api_allows(replicas: int, most: int) -> None:
    trainer = {"replicas": replicas, "offloadActivations": True}
    case = make_case(make_spec(Path("/model"), trainer=trainer), capacity=replace(ROOMY, device=MIB))
    tried: set[int] = set()

    def tracer(spec: RLJobSpec) -> Figures:
        tried.add(spec.trainer.replicas)
        return large_figures(spec)

    judge(case, tracer)
    assert max(tried) == most


def test_offloading_that_leaves_recomputation_open_recomputes() -> None:
    spec = make_spec(Path("/model"), trainer={"gradientCheckpointing": None, "offloadActivations": True})
    _, judgement = judged(spec, ROOMY)
    assert judgement.recomputed


def test_a_refusal_says_all_that_does_not_fit() -> None:
    spec = make_spec(Path("/model"), checkpoint={"volume": {"size": "1Mi"}})
    shared = dict.fromkeys(("driver", "trainer"), 100 * MIB)
    _, judgement = judged(spec, replace(ROOMY, shared_memory=shared))
    error = refusal(judgement.problems)
    assert len(judgement.problems) == 3
    assert error.field == judgement.problems[0].field
    for problem in judgement.problems:
        assert f"{problem.field}: {next(iter(problem.change.values()))}" in error.message


def test_the_export_is_written_file_by_file() -> None:
    spec, figures = make_spec(Path("/model")), replace(rough_figures(make_spec(Path("/model"))), published=50 * GIB)
    need = needs.host_need(spec, figures, "trainer", ROOMY)
    assert need.parts["export"] == FILE_BYTES + 2 * figures.largest


def test_a_rank_that_broadcasts_keeps_a_bucket_on_its_device() -> None:
    direct, host = (
        needs.device_need(spec, rough_figures(spec), ROOMY)
        for spec in (make_spec(Path("/model"), rollout={"publication": name}) for name in ("Direct", "Auto"))
    )
    spec = make_spec(Path("/model"))
    assert direct.needed - host.needed == needs.bucket_bytes(spec, rough_figures(spec))
    assert direct.needed == sum(direct.parts.values())
