"""Pods in each request dialect: refused ones by the policy that refuses them, and admitted ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from gpuslice.contract import dialects
from gpuslice.contract.dialects import (
    HAMI,
    HAMI_GPU,
    HAMI_MEMORY,
    KAI,
    KAI_FRACTION,
    VOLCANO,
    VOLCANO_MEMORY,
)
from tests.cluster.admission.requested import HALF, asking, container, of_volcano, pod
from tests.scheduler.dialects import kai_pods

Json = dict[str, Any]

MEMORY, NUMBER, VNUMBER, VMEMORY, PERCENT, CORES = VOLCANO.resources
GPU, GPU_MEMORY, GPU_PERCENT, GPU_CORES, PRIORITY = HAMI.resources
_PRIVILEGED: Final[Json] = {"securityContext": {"privileged": True}}
_LIMIT: Final = "nvidia.com/container.main.gpu-memory.limit"


def of_kai(*containers: Json, **annotations: str) -> Json:
    asked = annotations or {KAI_FRACTION: "0.5"}
    return pod(*containers, scheduler=KAI.scheduler_name, annotations=asked)


def stock(*containers: Json, **metadata: Any) -> Json:
    """A pod as HAMi's users write it: without a schedulerName."""
    raw = pod(*containers, **metadata)
    del raw["spec"]["schedulerName"]
    return raw


def _annotated(key: str, value: str) -> Json:
    return pod(asking({GPU_MEMORY: 3000}), annotations={key: value})


def _many(limits: Json, count: int) -> Json:
    return pod(*(asking(limits, f"c{number}") for number in range(count)))


_OF_VOLCANO: Final = (
    of_volcano(asking({NUMBER: 17})),
    of_volcano(asking({MEMORY: "8Gi"})),
    of_volcano(asking({VNUMBER: 1, VMEMORY: "64Mi"})),
    of_volcano(asking({MEMORY: "9223372036854775807"})),
    of_volcano(asking({VNUMBER: 17})),
    of_volcano(asking({VNUMBER: 1, VMEMORY: "1Pi"})),
    of_volcano(asking({VNUMBER: 1, PERCENT: 101})),
    of_volcano(asking({VNUMBER: 1, CORES: 200})),
    of_volcano(asking({VNUMBER: 0, VMEMORY: 4096, CORES: 1})),
    of_volcano(asking({VNUMBER: 0, PERCENT: 10})),
    of_volcano(asking({PERCENT: 50, CORES: 10})),
    of_volcano(container(), asking({CORES: 10}, "second")),
    of_volcano(asking({NUMBER: 1}), asking({MEMORY: 1024}, "first", init=True)),
    of_volcano(asking({MEMORY: 1}), asking({VMEMORY: 1}, "second")),
    of_volcano(asking({NUMBER: 1, VNUMBER: 1, CORES: 1})),
)
_OF_HAMI: Final = (
    pod(asking({GPU: 17})),
    pod(asking({GPU: 1, GPU_MEMORY: "8Gi"})),
    pod(asking({GPU: 1, GPU_MEMORY: "8Pi"})),
    pod(asking({GPU: 1, GPU_PERCENT: 101, GPU_MEMORY: 1})),
    pod(asking({GPU: 1, GPU_CORES: 101})),
    pod(asking({GPU: 0, GPU_MEMORY: 3000})),
    pod(asking({GPU: 1, PRIORITY: 2})),
    pod(asking({PRIORITY: 1})),
    pod(container(), asking({GPU_CORES: 200}, "first", init=True)),
    pod(asking({GPU: 1}), asking({GPU_CORES: 200}, "second")),
    pod(asking({GPU: 1}), container("other", **_PRIVILEGED)),
    pod(asking({GPU: 17, GPU_CORES: 101}, **_PRIVILEGED)),
    _annotated(dialects.HAMI_GPU_POLICY, "numa"),
    _annotated(dialects.HAMI_NODE_POLICY, "Spread"),
    _annotated(dialects.HAMI_USE_TYPE, ""),
    _annotated(dialects.HAMI_NO_USE_TYPE, " , "),
    _annotated(dialects.HAMI_USE_UUID, ","),
)
_OF_TWO: Final = (
    of_kai(asking(HALF), asking({VOLCANO_MEMORY: 1}, "second")),
    of_kai(asking(HALF), **{_LIMIT: "1Gi"}),
    of_volcano(asking({**HALF, VOLCANO_MEMORY: 1024})),
    pod(asking(HALF), asking({HAMI_MEMORY: 3000}, "second")),
    of_kai(asking({HAMI_MEMORY: 3000})),
    pod(asking({HAMI_GPU: 1, HAMI_MEMORY: 1}, "first", init=True), asking({VOLCANO_MEMORY: 1})),
)
_OF_NONE: Final = (
    pod(asking(HALF), asking({HAMI_GPU: 2}, "other")),
    pod(asking({**HALF, "koordinator.sh/rdma": 100})),
    pod(asking({**HALF, "kubernetes.io/rdma": 100})),
    of_volcano(asking({VOLCANO_MEMORY: 1, HAMI_GPU: 1})),
    of_kai(asking({"amd.com/gpu": 1})),
    pod(asking({HAMI_MEMORY: 1, "huawei.com/npu-core": 1})),
    _many(HALF, 33),
    _many({HAMI_GPU: 1}, 33),
)
WRONG: Final[Mapping[str, tuple[Json, ...]]] = {
    "gpuslice-volcano": _OF_VOLCANO,
    "gpuslice-hami": _OF_HAMI,
    "gpuslice-kai": tuple(raw for raw, _ in kai_pods.REFUSED.values()),
    "gpuslice-dialects": (*_OF_TWO, *_OF_NONE),
}
RIGHT: Final[tuple[Json, ...]] = (
    pod(asking(HALF)),
    pod(asking({VOLCANO_MEMORY: 1024})),
    pod(asking({HAMI_GPU: 1, HAMI_MEMORY: 3000})),
    of_kai(asking({HAMI_GPU: 2}), note="x"),
    pod(asking({**HALF, VOLCANO_MEMORY: 0, HAMI_MEMORY: 0})),
    pod(asking(HALF), annotations={KAI_FRACTION: "0.5"}),
    _many(HALF, 32),
    of_volcano(asking({NUMBER: 16})),
    of_volcano(asking({VMEMORY: 268435456})),
    of_volcano(asking({VNUMBER: 2, PERCENT: 100, CORES: 100, VMEMORY: 3})),
    of_volcano(asking({MEMORY: 0, CORES: 0, VNUMBER: 1})),
    of_volcano(asking({MEMORY: 0})),
    *kai_pods.ACCEPTED.values(),
)

_VOLCANOS: Final[dict[str, tuple[object, ...]]] = {
    MEMORY: (0, 1, 1024, "8Gi", "100Mi", "2k"),
    NUMBER: (0, 1, 16, 17),
    VNUMBER: (0, 1, 2, 17),
    VMEMORY: (0, 1, 4096, "1Ti"),
    PERCENT: (0, 1, 100, 101),
    CORES: (0, 1, 100, 101),
}
_KAIS: Final[dict[str, tuple[str, ...]]] = {
    "gpu-fraction": ("0.5", "1", "NaN", ".25", "0.5_0", "1e-7", "5e-1", "x"),
    "gpu-memory": ("2000", "0", "4Gi", "268435457"),
    "gpu-fraction-num-devices": ("1", "2", "17", "0"),
    "gpu-fraction-container-name": ("main", "first", "other"),
    "gpu-fraction-container-type": ("InitContainer", "RegularContainer"),
    "mps": ("true", "false"),
    kai_pods.LIMIT: ("1Gi", "2Gi", "1", "x"),
    kai_pods.REQUEST: ("1Gi", "1024Mi", "0"),
    "nvidia.com/container.second.gpu-memory.limit": ("1Gi",),
    "nvidia.com/container.main.unknown": ("1Gi",),
}


def _any_of_volcano(chance: random.Random) -> Json:
    kind = chance.choice(((MEMORY,), (NUMBER,), (VNUMBER, VMEMORY, PERCENT, CORES)))
    containers = []
    for number in range(chance.choice((1, 1, 2, 3))):
        keys = chance.sample(kind, chance.randint(0, len(kind)))
        asked = {key: chance.choice(_VOLCANOS[key]) for key in keys}
        containers.append(asking(asked, f"c{number}", init=number == 2))
    return of_volcano(*containers)


def _any_of_kai(chance: random.Random) -> Json:
    keys = chance.sample(sorted(_KAIS), chance.choice((1, 1, 2, 2, 3, 4)))
    annotations = {key: chance.choice(_KAIS[key]) for key in keys}
    return kai_pods.pod(annotations, chance.choice(("", "", "", "main", "first")))


def _any_mix(chance: random.Random) -> Json:
    keys = (*HALF, VOLCANO_MEMORY, HAMI_GPU, HAMI_MEMORY, "amd.com/gpu", "cpu")
    made = [
        asking(dict.fromkeys(chance.sample(keys, chance.choice((0, 1, 1, 2))), 1), f"c{n}")
        for n in range(chance.choice((1, 2)))
    ]
    return pod(*made)


RANDOM: Final[Mapping[str, Callable[[random.Random], Json]]] = {
    "volcano": _any_of_volcano,
    "kai": _any_of_kai,
    "a mix": _any_mix,
}
