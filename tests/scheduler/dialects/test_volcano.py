"""Volcano's dialect beyond its table of rows: cases of Volcano's own tests, and its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.core.fleet import Fleet, Gpu
from scheduler.core.reasons import Reason
from scheduler.core.request import Phase, Policy, Request, Scope
from scheduler.dialects import volcano
from scheduler.dialects.reading import Container, PodFields, Reading
from tests.scheduler.core import one_node
from tests.scheduler.core.one_node import placed
from tests.support import MIB

GPU_BYTES = 11178 * MIB

Limits = Mapping[str, Any]


def read(*mains: Limits, inits: Sequence[Limits] = ()) -> Reading:
    """Read a pod of Volcano. The keys of limits lack the prefix volcano.sh/."""
    containers: list[Container] = []
    for phase, all_limits in ((Phase.INIT, inits), (Phase.MAIN, mains)):
        for order, limits in enumerate(all_limits):
            named = {f"volcano.sh/{key}": value for key, value in limits.items()}
            containers.append(Container(f"{phase.value[0]}{order}", phase, order, named, named))
    found = volcano.read(PodFields("volcano", {}, {}, {}, containers))
    assert found is not None
    return found


def request(*mains: Limits, **others: Sequence[Limits]) -> Request:
    found = read(*mains, **others)
    return Request(found.containers, found.policy, found.selector, found.scope, found.isolation)


def minors(of: Fleet, *mains: Limits) -> dict[str, list[int]] | Reason:
    return one_node.minors(of, request(*mains))


def gpus_with(*held_mib: int) -> Fleet:
    """Return a fleet of GPUs with these MiB held."""
    gpus = one_node.gpus(len(held_mib), GPU_BYTES)
    return one_node.fleet(*([(mib * MIB, None)] if mib else [] for mib in held_mib), of=gpus)


def test_all_containers_share_the_lowest_gpu_that_fits() -> None:
    """Binpack would choose GPU 2. No overcommitted GPU is used, as in Volcano's share_test.go."""
    pod = ({"gpu-memory": 3000}, {"gpu-memory": 1000})
    assert read(*pod).policy is Policy.FIRST
    assert minors(gpus_with(8000, 0, 7000), *pod) == {"m0": [1], "m1": [1]}
    assert minors(gpus_with(7178, 0, 7000), *pod) == {"m0": [0], "m1": [0]}
    assert isinstance(minors(gpus_with(7179, 7179), *pod), Reason)
    assert minors(gpus_with(30000, 11178, 0), {"gpu-memory": 500}) == {"m0": [2]}


def test_vgpus_are_packed() -> None:
    """Binpack chooses the GPU in use, as in vgpu/utils_test.go. See also Test_FilterNode."""
    found = read({"vgpu-number": 1})
    assert (found.scope, found.policy, found.isolation) == (Scope.NODE, None, True)
    vgpu = {"vgpu-number": 1, "vgpu-memory": 4096}
    assert minors(gpus_with(0, 4096, 0), vgpu) == {"m0": [1]}
    sizes = [Gpu(f"GPU-{n}", n, mib * MIB) for n, mib in enumerate((30000, 20000, 30000))]
    mixed = one_node.fleet(of=sizes)
    assert minors(mixed, {"vgpu-number": 3, "vgpu-cores": 100}) == {"m0": [0, 1, 2]}


def test_the_outputs_of_the_guide() -> None:
    """Volcano gives GPU 0's MiB as each GPU's total (Volcano's issue 4713). gpuslice does not."""
    gpus = [Gpu("GPU-0", 0, 1000 * MIB), Gpu("GPU-1", 1, GPU_BYTES + 5)]
    pod: dict[str, Any] = {"inits": [{"gpu-memory": 512}]}
    node = one_node.fleet([(1000 * MIB, None)], [], of=gpus)
    chosen = placed(node, request({"gpu-memory": 1024}, {}, **pod))
    written = read({"gpu-memory": 1024}, {}, **pod).outputs(chosen, gpus, 1593764466550835304)
    assert written.annotations == {
        "volcano.sh/gpu-index": "1",
        "volcano.sh/predicate-time": "1593764466550835304",
    }
    assert written.environment == {
        name: {"VOLCANO_GPU_ALLOCATED": mib, "VOLCANO_GPU_MEMORY_TOTAL": "11178"}
        for name, mib in (("m0", "1024"), ("i0", "512"))
    }
    assert written.visible_devices == "index"


def test_a_container_with_several_gpus_has_no_variables_of_one() -> None:
    pair = {"gpu-number": 2}
    chosen = placed(gpus_with(0, 1, 0), request(pair))
    written = read(pair).outputs(chosen, one_node.gpus(3, GPU_BYTES), 1)
    assert written.annotations["volcano.sh/gpu-index"] == "0,2"
    assert written.environment == {}
