"""A node's totals follow their rules for any GPUs, pods and earlier states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from gpuslice.contract import names
from gpuslice.contract.dialects import HAMI, NODE_RESOURCES, VOLCANO, VOLCANO_NUMBER
from nri_plugin.policy import ledger
from nri_plugin.policy.gpu_modes import Mode
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Gpu, Pod, Share
from nri_plugin.policy.totals import Entry, entries, failed_gpu_notices, granted_gpus, totals
from tests.nri_plugin.policy.plan_scene import entry
from tests.support import GIB

UUIDS = st.sampled_from([f"GPU-{n}" for n in range(5)])
_IN_MIB: Final = ("volcano.sh/gpu-memory", "volcano.sh/vgpu-memory", "nvidia.com/gpumem")

gpus = st.dictionaries(UUIDS, st.just(0) | st.integers(1, 80), max_size=5).map(
    lambda found: [
        Gpu(uuid, minor, size * GIB, problem="" if size else "lost")
        for minor, (uuid, size) in enumerate(found.items())
    ]
)
holdings = st.dictionaries(UUIDS, st.integers(1, 80), max_size=5).map(
    lambda found: [Gpu(uuid, 7, size * GIB) for uuid, size in found.items()]
)
befores = gpus.map(lambda found: [Entry(c, healthy=True) for c in found if c.memory_bytes])
amounts = st.dictionaries(st.sampled_from(NODE_RESOURCES), st.integers(0, 1 << 40))


@given(gpus, befores, holdings, st.frozensets(UUIDS), st.frozensets(UUIDS), amounts)
def test_the_gpus_of_the_device_and_their_totals(
    seen: Sequence[Gpu],
    before: Sequence[Entry],
    held_gpus: Sequence[Gpu],
    others: AbstractSet[str],
    excluded: AbstractSet[str],
    requested: Mapping[str, int],
) -> None:
    """A failed GPU stays listed. A GPU that is gone stays listed while a share of it is held."""
    granted = {gpu.uuid for gpu in held_gpus} | others
    listed = entries(seen, before, granted, held_gpus)
    healthy = {gpu.uuid: gpu.memory_bytes for gpu in seen if not gpu.problem}
    stay = granted | {gpu.uuid for gpu in seen}
    known = Counter({each.gpu.uuid: each.gpu.memory_bytes for each in before})
    known |= {gpu.uuid: gpu.memory_bytes for gpu in held_gpus}  # union: the larger size
    sizes = {uuid: size for uuid, size in known.items() if uuid in stay} | healthy
    found = sorted((each.gpu.uuid, each.gpu.memory_bytes, each.healthy) for each in listed)
    assert found == sorted((uuid, size, uuid in healthy) for uuid, size in sizes.items())
    assert [e.gpu.minor for e in listed] == sorted(e.gpu.minor for e in listed)
    assert entries(seen, listed, granted, held_gpus) == listed, "a second evaluation"
    modes = {True: Mode.EXCLUDED, False: Mode.SHARED}
    listed = [replace(each, mode=modes[each.gpu.uuid in excluded]) for each in listed]
    offered = healthy.keys() - excluded
    counted = [size for uuid, size in sizes.items() if uuid in granted | offered]
    expected = dict.fromkeys(NODE_RESOURCES, 100 * len(counted)) | {
        names.RESOURCE_MEMORY: sum(counted),
        **dict.fromkeys(_IN_MIB, sum(size >> 20 for size in counted)),
        VOLCANO_NUMBER: len(counted),
    }
    assert totals(listed, granted, requested, NODE_RESOURCES) == {
        key: max(amount, requested.get(key, 0)) for key, amount in expected.items()
    }


def test_the_totals_of_volcanos_guide_and_of_hami() -> None:
    """The total is the sum of each GPU's whole MiB. Volcano multiplies the first GPU's size."""
    sizes = [11178 << 20] * 7 + [(11178 << 20) + 4095]
    listed = [Entry(Gpu(f"GPU-{n}", n, size), healthy=True) for n, size in enumerate(sizes)]
    found = totals(listed, frozenset(), {}, VOLCANO.node_resources)
    assert found == {
        **{"volcano.sh/gpu-memory": 89424, "volcano.sh/gpu-number": 8},
        **{"volcano.sh/vgpu-memory": 89424, "volcano.sh/vgpu-number": 800},
        **{"volcano.sh/vgpu-memory-percentage": 800, "volcano.sh/vgpu-cores": 800},
    }
    assert totals(listed, frozenset(), {}, HAMI.node_resources) == {
        **{"nvidia.com/gpumem": 89424, "nvidia.com/gpumem-percentage": 800},
        "nvidia.com/gpucores": 800,
    }


def test_a_removed_gpu_takes_no_place_in_the_list() -> None:
    """The scheduler reads only a limited number of GPUs."""
    here = [Gpu(f"GPU-{n}", n + 2, GIB) for n in range(names.MAX_GPUS - 1)]
    absent = [Gpu("GPU-a", 0, GIB), Gpu("GPU-b", 1, GIB)]
    listed = entries(here, (), {"GPU-a", "GPU-b"}, absent)
    assert [entry.gpu.uuid for entry in listed] == ["GPU-a", *(gpu.uuid for gpu in here)]
    here.append(Gpu("GPU-x", 99, GIB))
    assert [entry.gpu for entry in entries(here, (), {"GPU-a", "GPU-b"}, absent)] == here


def hold(key: str, *shares: Share) -> Hold:
    return ledger.hold(f"c-{key}", key, Pod("a", "team", "train"), "main", shares)


ZERO, ONE = Share("GPU-0", 3, GIB, 10), Share("GPU-1", 4, GIB, 10)
LOST = Gpu("GPU-1", 4, 0, problem="GPU is lost")


def test_the_granted_gpus_are_derived_from_their_grants() -> None:
    allocated = {"b": [entry("GPU-0", 3, memory=2 * GIB)], "c": [entry("GPU-2", 5, memory=GIB)]}
    assert granted_gpus([hold("x", ZERO, ONE)], allocated) == [
        Gpu("GPU-0", 3, 3 * GIB),
        Gpu("GPU-1", 4, GIB),
        Gpu("GPU-2", 5, GIB),
    ]
    held = hold("x", ZERO)
    for granted_gib in (2, 3):  # a pod's containers may hold only a part of its grant
        allocated = {"a": [entry("GPU-0", 3, memory=granted_gib * GIB)]}
        assert granted_gpus([held, hold("y", ZERO)], allocated) == [
            Gpu("GPU-0", 3, granted_gib * GIB)
        ]
    for partial in (entry(None, 3, memory=GIB), entry("GPU-0", 3, core=10)):
        assert granted_gpus([held, held], {"a": [partial]}) == [Gpu("GPU-0", 3, GIB)]
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
