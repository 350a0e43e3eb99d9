"""Random pods that request shares, valid and invalid: pods of one dialect, and of several mixed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from gpuslice.contract import names
from gpuslice.contract.dialects import HAMI_GPU, HAMI_MEMORY, VOLCANO_MEMORY
from tests.requests import kai_rows
from tests.requests.pods import HALF, Json, asking, of_kai, of_volcano, pod
from tests.requests.rows import MEMORY, NUMBER, VCORES, VMEMORY, VNUMBER, VPERCENT

Values = tuple[object, ...]

_OLD: Final = {new: old for old, new in names.DEPRECATED_RESOURCES.items()}
_PERCENTS: Final = (0, 1, 50, 99, 100, 101, 150, 200, 300, 1600, 1700, 2000)
_BYTES: Final = (
    *("0", "1", "2", "8Gi", "160G", "1.5Gi", "16Ti", "100Ti", "256Ti", "300Ti", "2Pi", "4Pi"),
    *("281474976710656", "281474976710657", "4503599627370497", "5Pi", "1Ei"),
    "9223372036854775807",
)
_FRACTIONS: Final = ("500m", "1500m", "0.1", "99.5", "100500m", "1e2")
"""The API server accepts fractions only in the resources' old names."""
_FOREIGN: Final = (*names.RESOURCES_WHOLE, *names.RESOURCES_KOORDINATOR_ONLY)
_ASKED: Final[dict[str, Values]] = {
    names.RESOURCE_GPU: _PERCENTS,
    names.RESOURCE_CORE: _PERCENTS,
    names.RESOURCE_MEMORY_RATIO: _PERCENTS,
    names.RESOURCE_MEMORY: _BYTES,
    names.RESOURCE_SHARED: (0, 1, 2, 3, 4, 16, 17, "1k"),
}
_OTHERS: Final[dict[str, Values]] = {
    **dict.fromkeys(_FOREIGN, (0, 1, 100)),
    **{old: (*_ASKED.get(new, (0, 1, 100)), *_FRACTIONS) for new, old in _OLD.items()},
}
_VALUES: Final[dict[str, Values]] = {
    names.LABEL_ISOLATION_PROVIDER: (names.ISOLATION_PROVIDER, "HAMi-core", "mps", ""),
    names.ANNOTATION_POLICY: ("binpack", "spread", "Spread", ""),
    names.ANNOTATION_COMPUTE: ("fair", "background", "Fair", ""),
}
_UNSUPPORTED: Final = (names.ANNOTATION_JOINT_ALLOCATE, names.ANNOTATION_PARTITION_SPEC)


def any_of_koordinator(chance: random.Random) -> Json:
    def drawn(key: str, often: float) -> Json:
        return {key: chance.choice(_VALUES[key])} if chance.random() < often else {}

    containers = [_any_container(f"c{n}", chance) for n in range(chance.choice((1, 1, 1, 2)))]
    if chance.random() < 0.3:
        always = {"restartPolicy": "Always"} if chance.random() < 0.5 else {}
        containers.append({**_any_container("i0", chance), "init": True, **always})
    labels = drawn(names.LABEL_ISOLATION_PROVIDER, 0.2)
    annotations = drawn(names.ANNOTATION_POLICY, 0.2) | drawn(names.ANNOTATION_COMPUTE, 0.1)
    if chance.random() < 0.1:
        annotations[chance.choice(_UNSUPPORTED)] = chance.choice(("{}", ""))
    return pod(*containers, labels=labels, annotations=annotations)


def _any_container(name: str, chance: random.Random) -> Json:
    table = _ASKED if chance.random() < 0.7 else {**_ASKED, **_OTHERS}
    keys = chance.sample(sorted(table), chance.choice((0, 1, 2, 2, 3)))
    asked: dict[str, Any] = {key: chance.choice(table[key]) for key in keys}
    return asking(asked, name)


_VOLCANOS: Final[dict[str, Values]] = {
    MEMORY: (0, 1, 1024, "8Gi", "100Mi", "2k"),
    NUMBER: (0, 1, 16, 17),
    VNUMBER: (0, 1, 2, 17),
    VMEMORY: (0, 1, 4096, "1Ti"),
    VPERCENT: (0, 1, 100, 101),
    VCORES: (0, 1, 100, 101),
}
_KAIS: Final[dict[str, tuple[str, ...]]] = {
    "gpu-fraction": ("0.5", "1", "NaN", ".25", "0.5_0", "1e-7", "5e-1", "x"),
    "gpu-memory": ("2000", "0", "4Gi", "268435457"),
    "gpu-fraction-num-devices": ("1", "2", "17", "0"),
    "gpu-fraction-container-name": ("main", "first", "other"),
    "gpu-fraction-container-type": ("InitContainer", "RegularContainer"),
    "mps": ("true", "false"),
    kai_rows.LIMIT: ("1Gi", "2Gi", "1", "x"),
    kai_rows.REQUEST: ("1Gi", "1024Mi", "0"),
    "nvidia.com/container.second.gpu-memory.limit": ("1Gi",),
    "nvidia.com/container.main.unknown": ("1Gi",),
}


def _any_of_volcano(chance: random.Random) -> Json:
    kind = chance.choice(((MEMORY,), (NUMBER,), (VNUMBER, VMEMORY, VPERCENT, VCORES)))
    containers = []
    for number in range(chance.choice((1, 1, 2, 3))):
        keys = chance.sample(kind, chance.randint(0, len(kind)))
        asked = {key: chance.choice(_VOLCANOS[key]) for key in keys}
        containers.append(asking(asked, f"c{number}", init=number == 2))
    return of_volcano(*containers)


def _any_of_kai(chance: random.Random) -> Json:
    keys = chance.sample(sorted(_KAIS), chance.choice((1, 1, 2, 2, 3, 4)))
    annotations = {key: chance.choice(_KAIS[key]) for key in keys}
    return of_kai(annotations, whole=chance.choice(("", "", "", "main", "first")))


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
