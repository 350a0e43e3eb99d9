"""Rows of Koordinator's dialect: its resources of containers, its label and its hints."""

from __future__ import annotations

from typing import Any, Final

from gpuslice.contract import dialects, names
from tests.requests.pods import HALF, Json, asking, container, pod
from tests.requests.row import Row, invalid, wrong

G, CORE, MEM, RATIO, SHARED = (
    names.RESOURCE_GPU,
    names.RESOURCE_CORE,
    names.RESOURCE_MEMORY,
    names.RESOURCE_MEMORY_RATIO,
    names.RESOURCE_SHARED,
)
Asked = dict[str, Any]
_SHARES: Final = f"{G} alone, or one of {MEM} and {RATIO}, optionally with {CORE} and {SHARED}"
_NAMES: Final = f"one of {', '.join(sorted((G, CORE, MEM, RATIO, SHARED)))}"
_POLICIES: Final = "one of binpack, spread"


def hint(gpu: str) -> dict[str, str]:
    return {names.ANNOTATION_ALLOCATE_HINT: f'{{"gpu": {gpu}}}'}


def _scope(text: str) -> dict[str, str]:
    of = '{"selector": {"matchLabels": {"a": "b"}}, "requiredTopologyScope": %s}'
    return hint(of % text)


def _wrong(asked: Asked, key: str, must_be: str, **more: Any) -> Row:
    return wrong("gpuslice-requests", pod, asked, key, must_be, **more)


def _container(asked: Asked, field: str, value: object, must_be: str) -> Row:
    text = invalid(f"container main: {field}", value, must_be)
    return Row(pod(asking(asked)), text, "gpuslice-requests")


def _shares(asked: Asked, written: str) -> Row:
    return _container(asked, "resources", written, _SHARES)


def _named(asked: Asked, name: str, must_be: str = _NAMES) -> Row:
    return _container(asked, "resource name", name, must_be)


_WHOLE: Final = "1 to 100, or a multiple of 100 for whole GPUs"
_ONE: Final = "1 to 100 percent for 1 GPU"
_TWO: Final = "2 to 200 percent for 2 GPUs"
_HINT: Final = f"{names.ANNOTATION_ALLOCATE_HINT}]: gpu.requiredTopologyScope"
_INSTEAD: Final = (
    f"must be absent, as gpuslice does not support it; use {names.ANNOTATION_ALLOCATE_HINT} instead"
)
_DETAILS: Final[list[tuple[Asked, Json, str]]] = [
    (
        HALF,
        {"labels": {names.LABEL_ISOLATION_PROVIDER: "mps"}},
        f"labels[{names.LABEL_ISOLATION_PROVIDER}]: invalid value 'mps': must be hami-core,"
        " in upper or lower case",
    ),
    (
        HALF,
        {"annotations": {names.ANNOTATION_POLICY: "Spread"}},
        f"annotations[{names.ANNOTATION_POLICY}]: invalid value 'Spread': must be {_POLICIES}",
    ),
    *(
        (
            HALF,
            {"annotations": {key: "Fair"}},
            f"annotations[{key}]: invalid value 'Fair': must be fair, capped, turns or background",
        )
        for key in (names.ANNOTATION_COMPUTE, f"{names.ANNOTATION_COMPUTE_PREFIX}main")
    ),
    (
        HALF,
        {"annotations": {f"{names.ANNOTATION_COMPUTE_PREFIX}second": "turns"}},
        f"annotations[{names.ANNOTATION_COMPUTE_PREFIX}second]: must be absent, as the pod has no"
        " container second",
    ),
    *(
        (HALF, {"annotations": {key: "{}"}}, f"annotations[{key}]: {_INSTEAD}")
        for key in (names.ANNOTATION_JOINT_ALLOCATE, names.ANNOTATION_PARTITION_SPEC)
    ),
    (
        HALF,
        {"annotations": _scope('"Socket"')},
        f"annotations[{_HINT}: invalid value 'Socket': must be one of Device, PCIe, NUMANode, Node",
    ),
    (
        {SHARED: 2, RATIO: 100},
        {"annotations": _scope('  \n"Device"')},
        f"annotations[{_HINT}: invalid value 'Device': must be one of PCIe, NUMANode, Node,"
        " as a container requests several GPUs",
    ),
]
CORE_ALONE: Final = _shares({CORE: 50}, f"{CORE}=50")
OLD_NAME: Final = _named({"kubernetes.io/gpu": 50}, "kubernetes.io/gpu", G)
MISSPELT: Final = _named({"koordinator.sh/gpu-mem": "8Gi"}, "koordinator.sh/gpu-mem")
OF_AN_INIT: Final = _wrong({G: 150}, G, _WHOLE, name="first", init=True)

REFUSED: Final = [
    OLD_NAME,
    _named({**HALF, "kubernetes.io/gpu-memory": 0}, "kubernetes.io/gpu-memory", MEM),
    _named({"kubernetes.io/gpu": "1500m"}, "kubernetes.io/gpu", G),
    MISSPELT,
    _named({"aliyun.com/gpu-mem": 4}, "aliyun.com/gpu-mem", f"{MEM}, in bytes"),
    _named({"aliyun.com/gpu-count": 1}, "aliyun.com/gpu-count"),
    _named({"kubernetes.io/Gpu.shared": 1}, "kubernetes.io/Gpu.shared"),
    CORE_ALONE,
    _shares({SHARED: 2}, f"{SHARED}=2"),
    _shares({G: 50, CORE: 50}, f"{G}=50, {CORE}=50"),
    _shares({SHARED: 1, CORE: 50}, f"{CORE}=50, {SHARED}=1"),
    _shares({MEM: "8Gi", RATIO: 50}, f"{MEM}={8 << 30}, {RATIO}=50"),
    _container({SHARED: 17, RATIO: 1700}, "number of GPUs", 17, "1 to 16"),
    _container({G: 1700}, "number of GPUs", 17, "1 to 16"),
    _wrong({G: 150}, G, _WHOLE),
    _wrong({RATIO: 101}, RATIO, _WHOLE),
    _wrong({CORE: 101, RATIO: 50}, CORE, _WHOLE),
    _wrong({CORE: 101, MEM: "1Gi"}, CORE, _WHOLE),
    _wrong({SHARED: 2, RATIO: 51}, RATIO, f"a multiple of {SHARED}, 2"),
    _wrong({SHARED: 2, CORE: 101, MEM: "1Gi"}, CORE, f"a multiple of {SHARED}, 2"),
    _wrong({SHARED: 2, RATIO: 202}, RATIO, _TWO),
    _wrong({SHARED: 2, CORE: 250, MEM: "1Gi"}, CORE, _TWO),
    _wrong({CORE: 1, RATIO: 200}, CORE, _TWO),
    _wrong({CORE: 200, RATIO: 50}, CORE, _ONE),
    _wrong({SHARED: 1, RATIO: 101}, RATIO, _ONE),
    _wrong({SHARED: 4, MEM: 3}, MEM, f"{512 << 20} to {1 << 50} bytes for 4 GPUs"),
    _wrong({SHARED: 2, MEM: (256 << 20) - 1}, MEM, f"{256 << 20} to {1 << 49} bytes for 2 GPUs"),
    _container({MEM: "300Ti"}, MEM, 300 << 40, f"{128 << 20} to {1 << 48} bytes for 1 GPU"),
    _container({MEM: "4Mi"}, MEM, 4 << 20, f"{128 << 20} to {1 << 48} bytes for 1 GPU"),
    OF_AN_INIT,
    wrong("gpuslice-requests", pod, {G: 150}, G, _WHOLE, container(), name="second"),
    *(
        Row(pod(asking(asked), **metadata), f"metadata.{text}", "gpuslice-requests")
        for asked, metadata, text in _DETAILS
    ),
]


def granted(asked: Asked, says: str) -> Row:
    return Row(pod(asking(asked)), f"main: {says}")


GRANTED: Final = [
    granted({G: 50}, "50% core, 1/2"),
    granted({G: 100}, "100% core, 1"),
    granted({G: 200}, "2 x 100% core, 1"),
    granted({G: 1600}, "16 x 100% core, 1"),
    granted({RATIO: 50}, "1/2"),
    granted({RATIO: 200}, "2 x 1"),
    granted({CORE: 50, RATIO: 50}, "50% core, 1/2"),
    granted({CORE: 25, RATIO: 200}, "2 x 12% core, 1"),
    # Koordinator's webhook divides this over two GPUs, because it fits on no single GPU.
    granted({CORE: 200, MEM: "64Gi"}, "2 x 100% core, 32768 MiB"),
    granted({CORE: 200, MEM: "64Gi", SHARED: 2}, "2 x 100% core, 32768 MiB"),
    granted({MEM: "8Gi"}, "8192 MiB"),
    granted({MEM: "128Mi"}, "128 MiB"),
    granted({CORE: 60, MEM: "1.5Gi"}, "60% core, 1536 MiB"),
    granted({SHARED: 1, RATIO: 100}, "1"),
    granted({SHARED: 2, CORE: 100, RATIO: 100}, "2 x 50% core, 1/2"),
    granted({SHARED: 2, RATIO: 200}, "2 x 1"),
    granted({SHARED: 3, MEM: "10Gi"}, "3 x 3579139413 B"),
    # Kubernetes treats zero as no request.
    granted({CORE: 0, RATIO: 50, SHARED: 0, MEM: "0"}, "1/2"),
    granted({RATIO: 50, "nvidia.com/gpu": 0, "koordinator.sh/rdma": 0, "cpu": "2"}, "1/2"),
    granted({**HALF, "volcano.sh/gpu-memory": 0, "nvidia.com/gpumem": 0}, "50% core, 1/2"),
    Row(pod(container(resources={"limits": HALF})), "main: 50% core, 1/2"),
    # Koordinator adds up both containers, which gives one GPU without a limit.
    Row(pod(asking(HALF), asking(HALF, "c")), "main: 50% core, 1/2; c (main 1): 50% core, 1/2"),
    Row(
        pod(asking({RATIO: 5}, "i", init=True), asking({RATIO: 6}, "s", init=True)),
        "i (init 0): 1/20; s (init 1): 3/50",
    ),
    *(
        Row(pod(asking(HALF), annotations=_scope(f'"{text}"')), f"main: 50% core, 1/2{says}")
        for text, says in (
            ("NUMANode", "; in one NUMA_NODE"),
            ("Device", "; in one DEVICE"),
            ("PCIe", "; in one PCIE"),
            ("Node", ""),
            ("", ""),
        )
    ),
    *(
        Row(pod(asking(HALF), annotations=annotations), "main: 50% core, 1/2")
        for annotations in (
            hint('{"requiredTopologyScope": "Socket", "requiredTopologyScope": "Node"}'),
            {names.ANNOTATION_ALLOCATE_HINT: "{}"},
            {names.ANNOTATION_COMPUTE: "capped"},
            {dialects.KAI_MPS: "true", dialects.HAMI_MODE: "hami-core"},
        )
    ),
    Row(
        pod(
            *(asking(HALF), container("second")),
            annotations={f"{names.ANNOTATION_COMPUTE_PREFIX}second": "turns"},
        ),
        "main: 50% core, 1/2",
    ),
    *(
        Row(pod(asking(asked)), "")
        for asked in ({}, {"cpu": "1"}, {G: 0}, {"amd.com/gpu": 1}, {"dcu.com/gpu": 2})
    ),
    *(
        Row(pod(container(), labels={names.LABEL_ISOLATION_PROVIDER: provider}), "")
        for provider in ("hami-core", "mps")
    ),
]
