"""The table of pods over all dialects: each with its request, or with its refusal and the policy.

The reader's test is tests/scheduler/dialects/test_rows.py. Admission's test is
tests/cluster/admission/test_rows.py.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from gpuslice.contract import dialects, names
from gpuslice.contract.dialects import HAMI, VOLCANO
from tests.requests import kai_rows, koordinator_rows
from tests.requests.koordinator_rows import CORE, MEM, RATIO, G, granted
from tests.requests.pods import HALF, Json, asking, container, of_kai, of_volcano, pod, unnamed
from tests.requests.row import Row, annotated, invalid, wrong

MEMORY, NUMBER, VNUMBER, VMEMORY, VPERCENT, VCORES = VOLCANO.resources
GPU, VGPU, GPUMEM, PERCENT, CORES, PRIORITY = HAMI.resources

_PRIVILEGED: Final[Json] = {"securityContext": {"privileged": True}}
_MIB: Final = "128 to 268435456 MiB, a number without a unit"
_MODE: Final = "hami-core, as gpuslice shares GPUs without MIG and MPS"
_LIST: Final = "names, separated by commas"
_POLICIES: Final = (
    "a list of binpack, spread, numa, topology-aware; instead of mutex request"
    " nvidia.com/gpucores: 100"
)
_NONE: Final = "1 to 16 in a container with"
_USED: Final = f"used with {VNUMBER}; set {VNUMBER}: 1"


UNREADABLE: Final = [
    Row(pod(asking({key: value})), f"container main: {key}: {text}")
    for key, value, text in (
        (G, "half", "invalid value 'half': must be a quantity such as 50, 11520Mi or 12Gi"),
        (RATIO, -1, "invalid value '-1': must be at least 0"),
        (RATIO, True, "invalid value of type bool: must be a quantity"),
        (MEM, ["8Gi"], "invalid value of type list: must be a quantity"),
        (G, 0.5, "invalid value 0.5: must be a whole number"),
        (RATIO, "1500m", "invalid value 1500m: must be a whole number"),
        (MEM, "0.3Ki", "invalid value 0.3Ki: must be a whole number"),
        (MEMORY, -5, "invalid value '-5': must be at least 0"),
        (GPUMEM, "1500m", "invalid value 1500m: must be a whole number"),
    )
]


# --- Volcano


_volcano = partial(wrong, "gpuslice-volcano", of_volcano)


def _kinds(one: str, other: str, why: str, *containers: Json) -> Row:
    text = invalid("spec", f"{one} and {other}", f"one of them; {why}")
    return Row(of_volcano(*containers), text, "gpuslice-volcano")


_APART: Final = "gpu-share and vgpu can't be used together"
_BOTH: Final = "can not define true in both gpu sharing and gpu number"
VOLCANOS_REFUSED: Final = [
    _volcano({NUMBER: 17}, NUMBER, "1 to 16"),
    _volcano({MEMORY: "8Gi"}, MEMORY, _MIB),
    _volcano({MEMORY: "4"}, MEMORY, _MIB),
    _volcano({MEMORY: 127}, MEMORY, _MIB),
    _volcano({VNUMBER: 1, VMEMORY: "64Mi"}, VMEMORY, _MIB),
    _volcano({VMEMORY: "4"}, VMEMORY, _MIB),
    _volcano({VNUMBER: 1, VMEMORY: 127, VPERCENT: 50}, VMEMORY, _MIB),
    _volcano({MEMORY: "9223372036854775807"}, MEMORY, _MIB),
    _volcano({VNUMBER: 17}, VNUMBER, "1 to 16"),
    _volcano({VNUMBER: 1, VPERCENT: 101}, VPERCENT, "1 to 100"),
    _volcano({VNUMBER: 1, VCORES: 200}, VCORES, "1 to 100"),
    _volcano({VNUMBER: 0, VMEMORY: 4096, VCORES: 1}, VNUMBER, f"{_NONE} {VMEMORY}"),
    _volcano({VNUMBER: 0, VPERCENT: 10}, VNUMBER, f"{_NONE} {VPERCENT}"),
    _volcano({VPERCENT: 50, VCORES: 10}, VPERCENT, _USED),
    _volcano({VCORES: 10}, VCORES, _USED, container(), name="second"),
    _kinds(MEMORY, NUMBER, _BOTH, asking({NUMBER: 1}), asking({MEMORY: 1024}, "first", init=True)),
    _kinds(MEMORY, VMEMORY, _APART, asking({MEMORY: 128}), asking({VMEMORY: 128}, "second")),
    _kinds(NUMBER, VNUMBER, _APART, asking({NUMBER: 1, VNUMBER: 1, VCORES: 1})),
]

VOLCANOS: Final = [
    Row(of_volcano(asking(asked)), f"main: {says}" if says else "")
    for asked, says in (
        ({MEMORY: 1024}, "1024 MiB; in one DEVICE"),
        ({MEMORY: "2k"}, "2000 MiB; in one DEVICE"),
        ({NUMBER: 16}, "16 x 100% core, 1"),
        ({VMEMORY: 268435456}, "268435456 MiB"),
        ({VNUMBER: 1, VMEMORY: 3000}, "3000 MiB"),
        ({VNUMBER: 1, VCORES: 0, MEMORY: 0}, "1"),
        ({VNUMBER: 1, VMEMORY: 3000, VPERCENT: 50}, "1/2"),
        ({VNUMBER: 2, VPERCENT: "33", VCORES: 100}, "2 x 100% core, 33/100"),
        ({VNUMBER: 2, VPERCENT: 100, VCORES: 100, VMEMORY: 128}, "2 x 100% core, 1"),
        ({MEMORY: 0, VCORES: "0"}, ""),
        ({}, ""),
    )
] + [
    Row(
        of_volcano(asking({MEMORY: 0}), asking({MEMORY: 128}, "m")),
        "m (main 1): 128 MiB; in one DEVICE",
    ),
    Row(
        of_volcano(
            asking({VNUMBER: 1, VMEMORY: 3000}), asking({VNUMBER: 3, VMEMORY: 5000}, "second")
        ),
        "main: 3000 MiB; second (main 1): 3 x 5000 MiB",
    ),
]

# --- HAMi


_hami = partial(wrong, "gpuslice-hami", pod)
_NOT_PRIVILEGED: Final = (
    "false in a pod that requests a share of a GPU, as a privileged container can use every GPU of"
    " its node"
)
_AMOUNTS: Final = f"absent without one of {', '.join((GPU, VGPU, GPUMEM, PERCENT, CORES))}"
HAMIS_REFUSED: Final = [
    _hami({GPU: 17}, GPU, "1 to 16"),
    _hami({GPU: 17, CORES: 101}, GPU, "1 to 16", **_PRIVILEGED),
    _hami({GPU: 1, GPUMEM: "8Gi"}, GPUMEM, _MIB),
    _hami({GPU: 1, GPUMEM: 4}, GPUMEM, _MIB),
    _hami({GPUMEM: 127, PERCENT: 50}, GPUMEM, _MIB),
    _hami({GPU: 1, PERCENT: 101, GPUMEM: 128}, PERCENT, "1 to 100"),
    _hami({GPU: 1, CORES: 101}, CORES, "1 to 100"),
    _hami({GPU: 0, GPUMEM: 3000}, GPU, "1 to 16"),
    _hami({VGPU: 0, CORES: 30}, VGPU, "1 to 16"),
    _hami({GPU: 1, VGPU: 1}, VGPU, "absent beside nvidia.com/gpu"),
    _hami({GPU: 1, PRIORITY: 2}, PRIORITY, "0 or 1"),
    _hami({PRIORITY: 1}, PRIORITY, _AMOUNTS),
    _hami({CORES: 200}, CORES, "1 to 100", container(), name="first", init=True),
    _hami({CORES: 200}, CORES, "1 to 100", asking({GPU: 1}), name="second"),
    Row(
        pod(asking({GPU: 1}), container("other", **_PRIVILEGED)),
        invalid("container other: securityContext.privileged", "true", _NOT_PRIVILEGED),
        "gpuslice-hami",
    ),
    *(
        Row(
            pod(asking({GPUMEM: 3000}), annotations={key: text}),
            annotated(key, repr(text), must_be),
            "gpuslice-hami",
        )
        for key, text, must_be in (
            *(
                (dialects.HAMI_GPU_POLICY, text, _POLICIES)
                for text in ("mutex", "binpack,mutex", "spread,", "Spread")
            ),
            *((dialects.HAMI_MODE, text, _MODE) for text in ("mig", "mps", "")),
            (dialects.VOLCANO_MODE, "mig", _MODE),
            *((dialects.HAMI_NUMA_BIND, text, "true or false") for text in ("yes", "")),
            (dialects.HAMI_NODE_POLICY, "Spread", _POLICIES),
            (dialects.HAMI_USE_TYPE, "", _LIST),
            (dialects.HAMI_NO_USE_TYPE, " , ", _LIST),
            (dialects.HAMI_USE_UUID, ",", _LIST),
        )
    ),
]
HAMIS: Final = [
    granted({GPU: "2", GPUMEM: "8k", CORES: "30"}, "2 x 30% core, 8000 MiB"),
    granted({GPU: 1, PERCENT: 50, CORES: 50}, "50% core, 1/2"),
    # An amount in MiB outranks one in percent, unlike in Volcano's dialect.
    granted({GPU: 1, PERCENT: 50, GPUMEM: 3000}, "3000 MiB"),
    granted({GPU: 2}, "2 x 100% core, 1"),  # two whole GPUs
    granted({GPU: 1, PERCENT: 100}, "100% core, 1"),
    granted({GPU: 1, PERCENT: 0, GPUMEM: 0, CORES: 0}, "100% core, 1"),
    granted({GPUMEM: 3000}, "3000 MiB"),
    granted({VGPU: 2, GPUMEM: 3000, CORES: 30}, "2 x 30% core, 3000 MiB"),
    granted({VGPU: 1}, "100% core, 1"),
    *(
        Row(
            pod(asking({GPU: gpus, GPUMEM: 3000}), annotations={key: text}),
            f"main: {gpus} x 3000 MiB{says}" if gpus > 1 else f"main: 3000 MiB{says}",
        )
        for gpus, key, text, says in (
            (2, dialects.HAMI_GPU_POLICY, "binpack, numa", ""),
            (2, dialects.HAMI_GPU_POLICY, "topology-aware", ""),
            (2, dialects.HAMI_MODE, "hami-core", ""),
            (2, dialects.HAMI_NUMA_BIND, "true", "; in one NUMA_NODE"),
            (2, dialects.HAMI_NUMA_BIND, "F", ""),
            (1, dialects.HAMI_NUMA_BIND, "true", ""),
            *((2, key, "any", "") for key in dialects.HAMI_UNREAD),
        )
    ),
    Row(pod(asking({GPUMEM: 3000}), scheduler=HAMI.scheduler_name), "main: 3000 MiB"),
    *(
        Row(pod(asking({GPUMEM: 3000}, env=[{"name": name, "value": value}])), "main: 3000 MiB")
        for name, value in (
            (names.ENV_VISIBLE_DEVICES, "all"),
            (dialects.HAMI_CORE_POLICY, "force"),
            (dialects.HAMI_CORE_POLICY, "default"),
        )
    ),
    Row(
        pod(asking({GPU: 1, GPUMEM: 8000, CORES: 50}), asking({GPU: 1, GPUMEM: 4000}, "embed")),
        "main: 50% core, 8000 MiB; embed (main 1): 4000 MiB",
        gpus=1,
    ),
    granted({PERCENT: 25, PRIORITY: 0}, "1/4"),
    granted({CORES: 10}, "10% core, 1"),
    granted({GPU: 16, GPUMEM: 1 << 28}, "16 x 268435456 MiB"),
    Row(pod(asking({GPU: 0, PRIORITY: "0"})), ""),
    Row(unnamed(container(resources={"limits": {GPU: "2"}})), "main: 2 x 100% core, 1"),
    Row(
        pod(asking({GPUMEM: 129}, "first", init=True), container(), asking({PERCENT: 50}, "last")),
        "first (init 0): 129 MiB; last (main 1): 1/2",
    ),
]

# --- several dialects, and none


def _many(limits: Json, count: int) -> Json:
    return pod(*(asking(limits, f"c{number}") for number in range(count)))


def _two(second: str, value: object, first: str, raw: Json) -> Row:
    must_be = (
        f"absent in a pod with {first}, as a pod requests shares of GPUs in one dialect; remove one"
        " of them"
    )
    return Row(raw, invalid(second, value, must_be), "gpuslice-dialects")


def _foreign(key: str, value: int, why: str, raw: Json, container: str = "main") -> Row:
    must_be = f"absent in a pod that requests a share of a GPU, as {why}"
    return Row(raw, invalid(f"container {container}: {key}", value, must_be), "gpuslice-dialects")


_ELSEWHERE: Final = f"another component or dialect allocates it; for a whole GPU request {G}: 100"
_KOORDINATOR_ONLY: Final = "only Koordinator's own scheduler allocates it"
_MIG: Final = f"{names.RESOURCE_MIG_PREFIX}1g.5gb"
_FRACTION: Final = "metadata.annotations[gpu-fraction]"
_MAIN: Final = f"container main: {CORE}"
_TOO_MANY: Final = invalid(
    "spec",
    "33 containers that request a share of a GPU",
    "at most 32; request shares in fewer containers",
)
SEVERAL_REFUSED: Final = [
    _two(
        _FRACTION, 0.5, _MAIN, of_kai(kai_rows.HALF, asking(HALF), asking({MEMORY: 200}, "second"))
    ),
    _two(
        *(f"metadata.annotations[{kai_rows.LIMIT}]", "1Gi", _MAIN),
        of_kai({kai_rows.LIMIT: "1Gi"}, asking(HALF)),
    ),
    _two(f"container main: {MEMORY}", 1024, _MAIN, of_volcano(asking({**HALF, MEMORY: 1024}))),
    _two(
        *(f"container second: {GPUMEM}", 3001, _MAIN),
        pod(asking(HALF), asking({GPUMEM: 3001}, "second")),
    ),
    _two(
        *(f"container main: {GPUMEM}", 3001, _FRACTION),
        of_kai(kai_rows.HALF, asking({GPUMEM: 3001})),
    ),
    _two(
        *(f"container first: {GPUMEM}", 201, f"container main: {MEMORY}"),
        pod(asking({GPU: 1, GPUMEM: 201}, "first", init=True), asking({MEMORY: 200})),
    ),
    _foreign(GPU, 2, _ELSEWHERE, pod(asking(HALF), asking({GPU: 2}, "other")), "other"),
    _foreign(GPU, 1, _ELSEWHERE, of_volcano(asking({MEMORY: 200, GPU: 1}))),
    *(
        _foreign(_MIG, 1, _ELSEWHERE, raw)
        for raw in (
            pod(asking({**HALF, _MIG: 1})),
            of_kai(kai_rows.HALF, asking({_MIG: 1})),
            of_volcano(asking({MEMORY: 200, _MIG: 1})),
            pod(asking({GPU: 1, _MIG: 1})),
        )
    ),
    *(
        Row(
            made(asked, annotations={key: text}),
            annotated(key, repr(text), _MODE),
            "gpuslice-dialects",
        )
        for key, text, made, asked in (
            (dialects.VOLCANO_MODE, "mig", of_volcano, asking({VNUMBER: 1})),
            (dialects.VOLCANO_MODE, "mps", of_volcano, asking({VNUMBER: 1})),
            (dialects.HAMI_MODE, "mig", of_volcano, asking({MEMORY: 200})),
            (dialects.HAMI_MODE, "mig", pod, asking(HALF)),
            (dialects.VOLCANO_MODE, "", pod, asking(HALF)),
        )
    ),
    Row(
        of_kai({**kai_rows.HALF, dialects.HAMI_MODE: "mig"}),
        annotated(dialects.HAMI_MODE, "'mig'", _MODE),
        "gpuslice-dialects",
    ),
    _foreign("amd.com/gpu", 1, _ELSEWHERE, of_kai(kai_rows.HALF, asking({"amd.com/gpu": 1}))),
    *(
        _foreign("koordinator.sh/rdma", 100, _KOORDINATOR_ONLY, pod(asking({**HALF, name: 100})))
        for name in ("koordinator.sh/rdma", "kubernetes.io/rdma")
    ),
    _foreign(
        *("huawei.com/npu-core", 1, _KOORDINATOR_ONLY),
        pod(asking({GPUMEM: 200, "huawei.com/npu-core": 1})),
    ),
    _two(
        *("metadata.annotations[gpu-memory]", 200, _MAIN),
        pod(asking(HALF), annotations={"gpu-memory": "200"}),
    ),
    Row(_many(HALF, 33), _TOO_MANY, "gpuslice-dialects"),
    Row(_many({GPU: 1}, 33), _TOO_MANY, "gpuslice-dialects"),
]
SEVERAL: Final = [
    Row(pod(asking({MEMORY: 1024})), "main: 1024 MiB; in one DEVICE"),
    Row(of_kai({}, whole="main"), "main: 100% core, 1"),
    *(
        Row(pod(scheduler=name, annotations={"gpu-fraction": "0.5"}), "main: 1/2")
        for name in dialects.SCHEDULER_NAMES[1:]
    ),
    Row(pod(annotations={"mps": "true", "gpu-fraction-num-devices": "2"}), ""),
    Row(pod(asking({_MIG: 1}), annotations={dialects.HAMI_MODE: "mig"}), ""),
    Row(of_volcano(asking({VNUMBER: 1}), annotations={dialects.HAMI_MODE: "hami-core"}), "main: 1"),
    Row(
        _many(HALF, 32),
        "; ".join(f"c{n}{f' (main {n})' if n else ''}: 50% core, 1/2" for n in range(32)),
    ),
]

REFUSED: Final = [
    *koordinator_rows.REFUSED,
    *kai_rows.NOTHING,
    *kai_rows.UNKNOWN,
    *kai_rows.REFUSED,
    *VOLCANOS_REFUSED,
    *HAMIS_REFUSED,
    *SEVERAL_REFUSED,
]
GRANTED: Final = [*koordinator_rows.GRANTED, *kai_rows.GRANTED, *VOLCANOS, *HAMIS, *SEVERAL]
FIRST: Final = {row.policy: row for row in reversed(REFUSED)}
"""For each policy, one row that it refuses."""
