"""The `gpuslice.io/grants` annotation: parsed strictly, since only gpuslice writes it."""

from __future__ import annotations

import pytest

from contract.grants import GpuGrant, GrantsError, decode, encode

GPU = '{"id":"GPU-a","minor":0,"memory":1024,"core":50}'


def document(gpus: str) -> str:
    return f'{{"v":1,"containers":{{"main":{gpus}}}}}'


def test_text() -> None:
    grants = {"main": (GpuGrant("GPU-a", 0, 1024, 50),)}
    assert encode(grants) == document(f"[{GPU}]")
    assert decode(encode(grants)) == grants


MALFORMED = [
    ("", "not JSON"),
    ("[" * 100_000, "not JSON"),
    ("[]", "invalid type list: must be an object"),
    ('{"v":2,"containers":{}}', "v: invalid value 2: must be 1"),
    ('{"v":true,"containers":{}}', "v: invalid value True: must be 1"),
    ('{"v":1,"containers":{},"pods":{}}', "unknown key pods: must be one of containers, v"),
    ('{"v":1,"containers":{},"containers":{}}', "duplicate key in v, containers, containers"),
    (
        document(f"[{GPU}]").replace('"core"', '"cores":1,"core"'),
        "containers.main[0]: unknown key cores",
    ),
    (document(f"[{GPU}]").replace('"core"', '"core":1,"core"'), "duplicate key in id"),
    ('{"v":1}', "containers: must be an object"),
    (document("{}"), "containers.main: must be a list of 1 to 16 GPUs"),
    (document("[]"), "containers.main: must be a list of 1 to 16 GPUs"),
    (document("[1]"), "containers.main[0]: invalid type int: must be an object"),
    (document(f"[{GPU},{GPU}]"), "duplicate GPU"),
    (document(f"[{GPU}]").replace('"GPU-a"', '""'), "containers.main[0].id"),
    (document(f"[{GPU}]").replace("1024", "0"), "containers.main[0].memory: invalid value 0"),
    (
        document(f"[{GPU}]").replace("1024", '"1Gi"'),
        "containers.main[0].memory: invalid value '1Gi'",
    ),
    (document(f"[{GPU}]").replace("1024", "1.5"), "containers.main[0].memory: invalid value 1.5"),
    (document(f"[{GPU}]").replace("50", "101"), "containers.main[0].core: invalid value 101"),
    (document(f"[{GPU}]").replace("50", "true"), "containers.main[0].core: invalid value True"),
    (
        document(f"[{GPU}]").replace('"minor":0', '"minor":-1'),
        "containers.main[0].minor: invalid value -1",
    ),
]


@pytest.mark.parametrize(("text", "reason"), MALFORMED)
def test_malformed_is_refused_with_the_field(text: str, reason: str) -> None:
    with pytest.raises(GrantsError) as caught:
        decode(text)
    assert reason in str(caught.value)
