"""The `device-allocated` annotation: bytes as Koordinator writes them, now and in the past."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.contract.allocation import Allocation, AllocationError, DeviceEntry, decode, encode
from tests.support import GIB

UUID = "GPU-8c25ea37-2909-6e62-b7bf-e2fcadebea8d"
CORE, MEMORY, RATIO = (
    "koordinator.sh/gpu-core",
    "koordinator.sh/gpu-memory",
    "koordinator.sh/gpu-memory-ratio",
)

# (name, allocation, text): the texts are output of Koordinator's scheduler.
RECORDED = [
    (
        "a whole GPU and an RDMA device",
        Allocation(
            {
                "rdma": (DeviceEntry(1, {"koordinator.sh/rdma": 100}, "0000:1f:00.0"),),
                "gpu": (DeviceEntry(0, {RATIO: 100, MEMORY: 16 * GIB, CORE: 100}, UUID),),
            }
        ),
        '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"100",'
        '"koordinator.sh/gpu-memory":"16Gi","koordinator.sh/gpu-memory-ratio":"100"},'
        f'"id":"{UUID}"}}],"rdma":[{{"minor":1,"resources":{{"koordinator.sh/rdma":"100"}},'
        '"id":"0000:1f:00.0"}]}',
    ),
    (
        "the seed document's, by minor alone",
        Allocation({"gpu": (DeviceEntry(1, {CORE: 50, MEMORY: 11520 * 2**20, RATIO: 50}),)}),
        '{"gpu":[{"minor":1,"resources":{"koordinator.sh/gpu-core":"50",'
        '"koordinator.sh/gpu-memory":"11520Mi","koordinator.sh/gpu-memory-ratio":"50"}}]}',
    ),
    (
        "a virtual function",
        Allocation(
            {"rdma": (DeviceEntry(0, {}, None, {"vfs": [{"minor": 2, "busID": "0000:1f:00.2"}]}),)}
        ),
        '{"rdma":[{"minor":0,"resources":{},"extension":{"vfs":[{"minor":2,"busID":"0000:1f:00.2"}]}}]}',
    ),
]


@pytest.mark.parametrize(
    ("allocation", "text"), [r[1:] for r in RECORDED], ids=[r[0] for r in RECORDED]
)
def test_recorded_allocations_are_encoded_and_decoded(allocation: Allocation, text: str) -> None:
    assert encode(allocation) == text
    assert decode(text) == allocation


TOLERATED = [
    ("any key order, spaces", '{ "gpu" : [ {"id":"X", "resources":{}, "minor":3} ] }', {}),
    ("bare numbers", f'{{"gpu":[{{"minor":3,"id":"X","resources":{{"{CORE}":50}}}}]}}', {CORE: 50}),
    (
        "names of the past",
        '{"gpu":[{"minor":3,"id":"X","resources":{"kubernetes.io/gpu-memory":"1Gi"}}]}',
        {MEMORY: GIB},
    ),
    ("null resources, unknown keys", '{"gpu":[{"minor":3,"id":"X","resources":null,"new":1}]}', {}),
]


@pytest.mark.parametrize(
    ("text", "resources"), [t[1:] for t in TOLERATED], ids=[t[0] for t in TOLERATED]
)
def test_tolerant_reader(text: str, resources: dict[str, int]) -> None:
    assert decode(text).gpus == (DeviceEntry(3, resources, "X"),)


def test_null_is_an_empty_list() -> None:
    devices = decode('{"gpu":null,"rdma":[{"minor":0}]}').devices
    assert devices == {"gpu": (), "rdma": (DeviceEntry(0, {}),)}


def test_large_whole_numbers_are_written_in_canonical_decimal() -> None:
    text = encode(Allocation({"gpu": (DeviceEntry(0, {"example.com/x": 2000}),)}))
    assert '"example.com/x":"2k"' in text


def test_strings_are_escaped_as_go_does() -> None:
    text = encode(Allocation({"gpu": (DeviceEntry(0, {}, "a<b>&\u2028"),)}))
    assert r'"id":"a\u003cb\u003e\u0026\u2028"' in text


MALFORMED = [
    ("", "not JSON"),
    ("{", "not JSON"),
    ("[" * 100_000, "not JSON"),
    ("[]", "must be an object by device type"),
    ('{"gpu":{}}', "gpu: invalid type dict: must be a list"),
    ('{"gpu":[1]}', "gpu[0]: invalid type int: must be an object"),
    ('{"gpu":[{}]}', "gpu[0].minor: invalid value None"),
    ('{"gpu":[{"minor":-1}]}', "gpu[0].minor: invalid value -1"),
    ('{"gpu":[{"minor":true}]}', "gpu[0].minor: invalid value True"),
    ('{"gpu":[{"minor":0,"id":7}]}', "gpu[0].id: invalid value 7"),
    (
        '{"gpu":[{"minor":0,"extension":[]}]}',
        "gpu[0].extension: invalid type list: must be an object",
    ),
    ('{"gpu":[{"minor":0,"resources":[]}]}', "gpu[0].resources: invalid type list"),
    (f'{{"gpu":[{{"minor":0,"resources":{{"{MEMORY}":"12 potatoes"}}}}]}}', "'12 potatoes'"),
    (f'{{"gpu":[{{"minor":0,"resources":{{"{MEMORY}":null}}}}]}}', "null: must be a quantity"),
    (
        f'{{"gpu":[{{"minor":0,"resources":{{"{CORE}":1,"kubernetes.io/gpu-core":1}}}}]}}',
        "duplicate",
    ),
    ("x" * 300_000, "characters, must be <= "),
]


@pytest.mark.parametrize(("text", "reason"), MALFORMED, ids=[r for _, r in MALFORMED])
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
