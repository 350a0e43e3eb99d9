"""The `device-allocated` annotation: bytes as Koordinator writes them, now and in the past."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.contract.allocation import Allocation, AllocationError, DeviceEntry, decode, encode
from tests.support import GIB

UUID = "GPU-8c25ea37-2909-6e62-b7bf-e2fcadebea8d"
CORE, MEMORY, RATIO = (f"koordinator.sh/gpu-{name}" for name in ("core", "memory", "memory-ratio"))

RDMA = DeviceEntry(1, {"koordinator.sh/rdma": 100}, "0000:1f:00.0")
WHOLE = DeviceEntry(0, {RATIO: 100, MEMORY: 16 * GIB, CORE: 100}, UUID)
VIRTUAL = DeviceEntry(0, {}, None, {"vfs": [{"minor": 2, "busID": "0000:1f:00.2"}]})
HALF = DeviceEntry(1, {CORE: 50, MEMORY: 11520 * 2**20, RATIO: 50})
RECORDED = {
    "a whole GPU and an RDMA device": (
        {"rdma": (RDMA,), "gpu": (WHOLE,)},
        '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"100",'
        '"koordinator.sh/gpu-memory":"16Gi","koordinator.sh/gpu-memory-ratio":"100"},'
        f'"id":"{UUID}"}}],"rdma":[{{"minor":1,"resources":{{"koordinator.sh/rdma":"100"}},'
        '"id":"0000:1f:00.0"}]}',
    ),
    "the seed document's, by minor alone": (
        {"gpu": (HALF,)},
        '{"gpu":[{"minor":1,"resources":{"koordinator.sh/gpu-core":"50",'
        '"koordinator.sh/gpu-memory":"11520Mi","koordinator.sh/gpu-memory-ratio":"50"}}]}',
    ),
    "a virtual function": (
        {"rdma": (VIRTUAL,)},
        '{"rdma":[{"minor":0,"resources":{},'
        '"extension":{"vfs":[{"minor":2,"busID":"0000:1f:00.2"}]}}]}',
    ),
}
"""Output of Koordinator's scheduler."""


@pytest.mark.parametrize(("devices", "text"), RECORDED.values(), ids=RECORDED)
def test_recorded_allocations_are_encoded_and_decoded(
    devices: dict[str, tuple[DeviceEntry, ...]], text: str
) -> None:
    assert encode(Allocation(devices)) == text
    assert decode(text) == Allocation(devices)


def with_resources(written: str) -> str:
    return f'{{"gpu":[{{"minor":3,"id":"X","resources":{written}}}]}}'


TOLERATED = {
    "key order": ('{ "gpu" : [ {"id":"X", "resources":{}, "minor":3} ] }', {}),
    "bare numbers": (with_resources(f'{{"{CORE}":50}}'), {CORE: 50}),
    "names of the past": (with_resources('{"kubernetes.io/gpu-memory":"1Gi"}'), {MEMORY: GIB}),
    "null, an unknown key": (with_resources('null,"new":1'), {}),
}


@pytest.mark.parametrize(("text", "resources"), TOLERATED.values(), ids=TOLERATED)
def test_tolerant_reader(text: str, resources: dict[str, int]) -> None:
    assert decode(text).gpus == (DeviceEntry(3, resources, "X"),)


def test_null_is_an_empty_list() -> None:
    devices = decode('{"gpu":null,"rdma":[{"minor":0}]}').devices
    assert devices == {"gpu": (), "rdma": (DeviceEntry(0, {}),)}


def test_numbers_are_canonical_and_strings_are_escaped_as_go_does() -> None:
    text = encode(Allocation({"gpu": (DeviceEntry(0, {"example.com/x": 2000}, "a<b>&\u2028"),)}))
    assert '"example.com/x":"2k"' in text
    assert r'"id":"a\u003cb\u003e\u0026\u2028"' in text


MALFORMED = [
    *((text, "not JSON") for text in ("", "{", "[" * 100_000)),
    ("[]", "must be an object by device type"),
    ('{"gpu":{}}', "gpu: invalid type dict: must be a list"),
    ('{"gpu":[1]}', "gpu[0]: invalid type int: must be an object"),
    ('{"gpu":[{"minor":-1}]}', "gpu[0].minor: invalid value -1"),
    ('{"gpu":[{"minor":true}]}', "gpu[0].minor: invalid value True"),
    ('{"gpu":[{"minor":0,"id":7}]}', "gpu[0].id: invalid value 7"),
    (with_resources('{},"extension":[]'), "gpu[0].extension: invalid type list: must be an object"),
    (with_resources("[]"), "gpu[0].resources: invalid type list"),
    (with_resources(f'{{"{MEMORY}":"12 potatoes"}}'), "'12 potatoes'"),
    (with_resources(f'{{"{MEMORY}":null}}'), "null: must be a quantity"),
    (with_resources(f'{{"{CORE}":1,"kubernetes.io/gpu-core":1}}'), "duplicate"),
    ("x" * 300_000, "characters, must be <= "),
]


@pytest.mark.parametrize(("text", "reason"), MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_is_refused_with_the_field(text: str, reason: str) -> None:
    with pytest.raises(AllocationError) as caught:
        decode(text)
    assert reason in str(caught.value)


entries = st.builds(
    DeviceEntry,
    st.integers(0, 255),
    st.dictionaries(st.sampled_from([CORE, MEMORY, RATIO]), st.integers(0, 2**62)),
    st.none() | st.text(min_size=1),
)


@given(st.dictionaries(st.sampled_from(["gpu", "rdma"]), st.lists(entries).map(tuple)))
def test_what_is_written_reads_back(devices: dict[str, tuple[DeviceEntry, ...]]) -> None:
    assert decode(encode(Allocation(devices))) == Allocation(devices)
