"""KAI's dialect: each row of its tables of requests and of refusals."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from gpuslice.contract.dialects import KAI, KOORDINATOR
from scheduler.core.fleet import Gpu
from scheduler.core.place import Placement, Share
from scheduler.core.request import ContainerRequest, Phase
from scheduler.dialects.kai import read
from scheduler.dialects.reading import Reading, RequestError
from scheduler.kubernetes import requests
from tests.scheduler.dialects.kai_pods import LIMIT, REFUSED, REQUEST, fields, pod

Mi, Gi = 2**20, 2**30
A100 = 46068 * Mi


def reading(annotations: dict[str, str]) -> Reading:
    found = read(fields(pod(annotations)))
    assert found is not None
    return found


def requested(annotations: dict[str, str]) -> ContainerRequest:
    (only,) = reading(annotations).containers
    return only


@pytest.mark.parametrize("annotations", [{}, {"mps": "false"}, {"gpu-fraction-container-name": ""}])
def test_no_request(annotations: dict[str, str]) -> None:
    assert read(fields(pod(annotations))) is None
    assert read(fields(pod(annotations, "main"))) is None


_ASK_FOR_NOTHING = ("mps ", "a number of devices ")


@pytest.mark.parametrize("what", [what for what in REFUSED if what.startswith(_ASK_FOR_NOTHING)])
def test_while_the_dialect_is_off_a_pod_without_a_share_is_accepted(what: str) -> None:
    assert requests.request(REFUSED[what][0]) is None


_LEFT_OUT = (*_ASK_FOR_NOTHING, "the key ")


@pytest.mark.parametrize("what", [what for what in REFUSED if not what.startswith(_LEFT_OUT)])
def test_while_the_dialect_is_off_a_request_is_refused_with_its_switch(what: str) -> None:
    raw, _ = REFUSED[what]
    with pytest.raises(RequestError) as refused:
        requests.request(raw)
    assert str(refused.value).endswith(
        ": must be absent, as the dialect kai is off; set global.gpuSharing to true"
    )


def test_beside_another_dialect_it_is_refused() -> None:
    raw = pod({"gpu-fraction": "0.5"})
    raw["spec"]["containers"][1]["resources"] = {"limits": {"koordinator.sh/gpu": 50}}
    with pytest.raises(RequestError) as refused:
        requests.request(raw, frozenset({KOORDINATOR.name, KAI.name}))
    for key in ("metadata.annotations[gpu-fraction]", "container second"):
        assert key in str(refused.value)


# --- amounts

FRACTIONS = [
    ("0.5", Fraction(1, 2), 24152899584),
    ("0.125", Fraction(1, 8), 6038224896),
    ("0.1", Fraction(1, 10), 4830579916),
    ("0.333", Fraction(333, 1000), 16085831122),
    ("29e-2", Fraction(29, 100), 14008681758),
    # As a float it is more: 0.57 * 40000 is 22799.999999999996, 0.07 * 100 is 7.000000000000001.
    ("0.57", Fraction(57, 100), 27534305525),
    ("0.07", Fraction(7, 100), 3381405941),
]


@pytest.mark.parametrize(("text", "ratio", "size"), FRACTIONS)
def test_a_fraction_is_exact_and_its_bytes_are_the_floor(
    text: str, ratio: Fraction, size: int
) -> None:
    found = requested({"gpu-fraction": text})
    assert found == ContainerRequest("main", Phase.MAIN, 0, memory_ratio=ratio)
    assert found.bytes_of(A100) == size == A100 * ratio // 1


@pytest.mark.parametrize(
    ("annotations", "size"),
    [
        ({"gpu-memory": "2000"}, 2097152000),
        ({"gpu-memory": "4096"}, 4 * Gi),
        ({LIMIT: "1500M"}, 1_500_000_000),
        ({REQUEST: "1Mi"}, Mi),
        ({REQUEST: "1Gi", LIMIT: "1024Mi"}, Gi),
    ],
)
def test_memory_is_to_the_byte(annotations: dict[str, str], size: int) -> None:
    assert requested(annotations) == ContainerRequest("main", memory_bytes=size)


def test_several_gpus_have_that_much_each() -> None:
    several = {"gpu-fraction": "0.25", "gpu-fraction-num-devices": "3"}
    assert requested(several) == ContainerRequest("main", gpus=3, memory_ratio=Fraction(1, 4))


# --- the container


@pytest.mark.parametrize(
    ("written", "container", "phase", "order"),
    [
        ({}, "main", Phase.MAIN, 0),
        ({"name": "second"}, "second", Phase.MAIN, 1),
        ({"name": "first"}, "first", Phase.INIT, 0),
        ({"type": "InitContainer"}, "first", Phase.INIT, 0),
        ({"type": "InitContainer", "name": "first"}, "first", Phase.INIT, 0),
        ({"type": "RegularContainer", "name": "first"}, "first", Phase.INIT, 0),
    ],
)
def test_the_container(written: dict[str, str], container: str, phase: Phase, order: int) -> None:
    annotations = {f"gpu-fraction-container-{key}": text for key, text in written.items()}
    found = requested({"gpu-fraction": "0.5", **annotations})
    assert (found.name, found.phase, found.order) == (container, phase, order)


# --- what is said of it


def test_mps_has_no_effect_and_is_reported() -> None:
    (notice,) = reading({"gpu-fraction": "0.5", "mps": "true"}).notices
    assert notice.startswith("metadata.annotations[mps]: true has no effect: ")
    assert not reading({"gpu-fraction": "0.5", "mps": "false"}).notices


def test_a_request_requires_isolation() -> None:
    assert reading({"gpu-fraction": "0.5"}).isolation


@pytest.mark.parametrize(
    ("annotations", "portion"),
    [
        ({"gpu-fraction": "0.333"}, "0.33"),
        ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}, "0.50"),
        ({"gpu-fraction": "0.005"}, "0.01"),
        ({"gpu-memory": "2000", "gpu-fraction-container-name": "second"}, "0.04"),
        ({LIMIT: "20Gi", "gpu-fraction-num-devices": "2"}, "0.44"),
    ],
)
def test_the_outputs(annotations: dict[str, str], portion: str) -> None:
    found = reading(annotations)
    (only,) = found.containers
    gpus = [Gpu("GPU-a", 0, 80 * Gi), Gpu("GPU-b", 1, A100), Gpu("GPU-c", 2, 80 * Gi)]
    shares = [
        Share(only.name, gpu.uuid, gpu.minor, only.bytes_of(gpu.total_bytes), None)
        for gpu in gpus[1 : 1 + only.gpus]
    ]
    outputs = found.outputs(Placement("n", shares, []), gpus, 0)
    assert outputs.annotations == {"received-resource-type": "Fraction"}
    named: dict[str, Any] = {"GPU_PORTION": portion, "RUNAI_NUM_OF_GPUS": portion}
    assert outputs.environment == {only.name: named}
    assert outputs.visible_devices == "uuid"
    assert {*outputs.annotations} <= {*KAI.written_annotations}
    assert {*named} == {*KAI.environment}
