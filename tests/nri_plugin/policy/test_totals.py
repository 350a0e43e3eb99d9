"""A node's totals: the rules, for any GPUs, pods and earlier states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpuslice.contract import names
from gpuslice.contract.dialects import NODE_RESOURCES, VOLCANO, VOLCANO_MEMORY, VOLCANO_NUMBER
from nri_plugin.policy import ledger
from nri_plugin.policy.gpu_modes import Mode
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Gpu, Pod, Share
from nri_plugin.policy.totals import Entry, entries, failed_gpu_notices, granted_gpus, totals
from tests.nri_plugin.policy.plan_scene import entry
from tests.support import GIB

UUIDS = st.sampled_from([f"GPU-{n}" for n in range(5)])


@st.composite
def gpus(draw: st.DrawFn) -> Sequence[Gpu]:
    chosen = draw(st.lists(UUIDS, unique=True, max_size=5))
    return [
        Gpu(uuid, minor, 0 if ill else draw(st.integers(1, 80)) * GIB, problem="lost" * ill)
        for minor, uuid in enumerate(chosen)
        for ill in [draw(st.booleans())]
    ]


holdings = st.dictionaries(UUIDS, st.integers(1, 80), max_size=5).map(
    lambda found: [Gpu(uuid, 7, size * GIB) for uuid, size in found.items()]
)
befores = gpus().map(lambda found: [Entry(c, healthy=True) for c in found if c.memory_bytes])
amounts = st.dictionaries(st.sampled_from(NODE_RESOURCES), st.integers(0, 1 << 40))


@given(gpus(), befores, holdings, st.frozensets(UUIDS), amounts)
def test_the_totals(
    seen: Sequence[Gpu],
    before: Sequence[Entry],
    held_gpus: Sequence[Gpu],
    excluded: AbstractSet[str],
    requested: Mapping[str, int],
) -> None:
    granted = {gpu.uuid for gpu in held_gpus}
    listed = [
        replace(each, mode=Mode.EXCLUDED if each.gpu.uuid in excluded else Mode.SHARED)
        for each in entries(seen, before, granted, held_gpus)
    ]
    found = totals(listed, granted, requested, NODE_RESOURCES)
    assert set(found) == set(NODE_RESOURCES)
    healthy = {c.uuid: c.memory_bytes for c in seen if not c.problem}
    known = {e.gpu.uuid: e.gpu.memory_bytes for e in before}
    held = {c.uuid: max(c.memory_bytes, known.get(c.uuid, 0)) for c in held_gpus}
    counted = {uuid: size for uuid, size in healthy.items() if uuid not in excluded} | held
    counted |= {uuid: size for uuid, size in healthy.items() if uuid in granted}
    expected = {
        names.RESOURCE_MEMORY: sum(counted.values()),
        VOLCANO_MEMORY: sum(size >> 20 for size in counted.values()),
        VOLCANO_NUMBER: len(counted),
    }
    for key, amount in found.items():
        assert amount == max(expected.get(key, 100 * len(counted)), requested.get(key, 0))


def test_the_totals_of_volcanos_guide() -> None:
    """Each GPU counts with its own size, in whole MiB; Volcano takes the first one's for all."""
    sizes = [11178 << 20] * 7 + [(11178 << 20) + 4095]
    listed = [Entry(Gpu(f"GPU-{n}", n, size), healthy=True) for n, size in enumerate(sizes)]
    found = totals(listed, frozenset(), {}, VOLCANO.node_resources)
    assert found == {"volcano.sh/gpu-memory": 89424, "volcano.sh/gpu-number": 8}


@given(gpus(), befores, holdings, st.frozensets(UUIDS))
def test_what_the_device_lists(
    seen: Sequence[Gpu], before: Sequence[Entry], held_gpus: Sequence[Gpu], others: AbstractSet[str]
) -> None:
    granted = {gpu.uuid for gpu in held_gpus} | others
    listed = entries(seen, before, granted, held_gpus)
    by_uuid = {entry.gpu.uuid: entry for entry in listed}
    assert len(by_uuid) == len(listed)
    assert {u for u, e in by_uuid.items() if e.healthy} == {c.uuid for c in seen if not c.problem}
    # A holder of a share of a GPU that was listed, or that it reports, finds the GPU listed.
    assert granted & {entry.gpu.uuid for entry in before} <= by_uuid.keys()
    for gpu in held_gpus:
        entry = by_uuid[gpu.uuid]
        assert entry.healthy or entry.gpu.memory_bytes >= gpu.memory_bytes
    assert by_uuid.keys() <= granted | {gpu.uuid for gpu in seen}
    assert all(entry.gpu.memory_bytes for entry in listed)
    assert [e.gpu.minor for e in listed] == sorted(e.gpu.minor for e in listed)
    assert entries(seen, listed, granted, held_gpus) == listed, "a second evaluation"


def test_a_gpu_that_is_no_more_takes_no_place_in_the_list() -> None:
    """The scheduler reads a limited number, and every account may write an allocation without a
    policy."""
    here = [Gpu(f"GPU-{n}", n + 2, GIB) for n in range(names.MAX_GPUS - 1)]
    absent = [Gpu("GPU-a", 0, GIB), Gpu("GPU-b", 1, GIB)]
    listed = entries(here, (), {"GPU-a", "GPU-b"}, absent)
    assert [entry.gpu.uuid for entry in listed] == ["GPU-a", *(gpu.uuid for gpu in here)]


def test_a_gpu_that_fails_counts_while_it_is_granted() -> None:
    size = 10 * GIB
    good, bad = Gpu("GPU-0", 0, size), Gpu("GPU-1", 1, size)
    before = [Entry(good, healthy=True), Entry(bad, healthy=True)]
    for granted, gpus_counted in ((frozenset({"GPU-1"}), 2), (frozenset[str](), 1)):
        listed = entries([good, replace(LOST, minor=1)], before, granted)
        assert [(e.gpu.memory_bytes, e.healthy) for e in listed] == [(size, True), (size, False)]
        found = totals(listed, granted, {})
        assert found[names.RESOURCE_GPU] == 100 * gpus_counted
        assert found[names.RESOURCE_MEMORY] == size * gpus_counted


def hold(key: str, *shares: Share) -> Hold:
    return ledger.hold(f"c-{key}", key, False, Pod("a", "team", "train"), "main", shares)


ZERO, ONE = Share("GPU-0", 3, GIB, 10), Share("GPU-1", 4, GIB, 10)
LOST = Gpu("GPU-1", 4, 0, problem="GPU is lost")


def test_the_granted_gpus_are_derived_from_their_grants() -> None:
    allocated = {"b": [entry("GPU-0", 3, memory=2 * GIB)], "c": [entry("GPU-2", 5, memory=GIB)]}
    assert granted_gpus([hold("x", ZERO, ONE)], allocated) == [
        Gpu("GPU-0", 3, 3 * GIB),
        Gpu("GPU-1", 4, GIB),
        Gpu("GPU-2", 5, GIB),
    ]
    # A pod's containers hold a part of its grant.
    for granted_gib in (2, 3):
        allocated = {"a": [entry("GPU-0", 3, memory=granted_gib * GIB)]}
        found = granted_gpus([hold("x", ZERO), hold("y", ZERO)], allocated)
        assert found == [Gpu("GPU-0", 3, granted_gib * GIB)]
    shared = hold("pod-a", ZERO)
    assert granted_gpus([shared, shared], {}) == [Gpu("GPU-0", 3, GIB)]


def test_the_holds_complete_an_incomplete_annotation() -> None:
    held = hold("x", ZERO)
    for partial in (entry(None, 3, memory=GIB), entry("GPU-0", 3, core=10)):
        assert granted_gpus([held], {"a": [partial]}) == [Gpu("GPU-0", 3, GIB)]
        assert granted_gpus([], {"a": [partial]}) == []
    assert granted_gpus([replace(held, minors={})], {}) == []


def test_pods_with_a_share_of_a_failed_gpu_get_a_notice() -> None:
    good, holds = Gpu("GPU-0", 3, GIB), [hold("x", ZERO, ONE), hold("y", ZERO)]
    (notice,) = failed_gpu_notices(holds, [good, LOST])
    assert (notice.pod.uid, notice.reason) == ("a", names.EVENT_GPU_FAILED)
    assert "GPU-1, used by team/train/main, is unhealthy: GPU is lost" in notice.text
    (notice,) = failed_gpu_notices([hold("x", ONE)], [good])
    assert "is unhealthy: NVML does not list it" in notice.text
    assert not list(failed_gpu_notices(holds, [good, replace(LOST, problem="")]))
