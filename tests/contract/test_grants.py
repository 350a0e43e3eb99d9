"""The `gpuslice.io/grants` annotation: parsed strictly, since only gpuslice writes it."""

from __future__ import annotations

import pytest

from gpuslice.contract.grants import Document, GpuGrant, GrantsError, decode, encode, parse

GPU = '{"id":"GPU-a","minor":0,"memory":1024,"core":50}'


def document(gpus: str) -> str:
    return f'{{"v":1,"containers":{{"main":{gpus}}}}}'


def test_text() -> None:
    grants = {"main": (GpuGrant("GPU-a", 0, 1024, 50),)}
    assert encode(grants) == document(f"[{GPU}]")
    assert decode(encode(grants)) == grants
    # Agents of the release before the optional keys read what is written for Koordinator's dialect.
    assert encode(grants, {}, "uuid") == document(f"[{GPU}]")


def test_text_of_other_dialects() -> None:
    grants = {"main": (GpuGrant("GPU-a", 0, 1024, 50),)}
    variables = {"main": {"B": "2", "A": ""}}
    text = encode(grants, variables, "index")
    assert text == with_keys('"env":{"main":{"A":"","B":"2"}},"visible":"index"')
    assert parse(text) == Document(grants, variables, by_index=True)
    assert parse(encode(grants)) == Document(grants)


def with_keys(more: str) -> str:
    return f"{document(f'[{GPU}]')[:-1]},{more}}}"


MALFORMED = [
    ("", "not JSON"),
    ("[" * 100_000, "not JSON"),
    ("[]", "invalid type list: must be an object"),
    ('{"v":2,"containers":{}}', "v: invalid value 2: must be 1"),
    ('{"v":true,"containers":{}}', "v: invalid value True: must be 1"),
    (
        '{"v":1,"containers":{},"pods":{}}',
        "unknown key pods: must be one of containers, env, v, visible",
    ),
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
    (with_keys('"visible":"uuid"'), "visible: invalid value 'uuid': must be index"),
    (with_keys('"visible":null'), "visible: invalid value None: must be index"),
    (with_keys('"env":[]'), "env: must be an object by container name"),
    (with_keys('"env":null'), "env: must be an object by container name"),
    (with_keys('"env":{"side":{"A":"1"}}'), "env.side: invalid container: must have a share"),
    (with_keys('"env":{"main":{}}'), "env.main: must be an object of 1 to 16 variables"),
    (with_keys('"env":{"main":{"A=B":"1"}}'), "env.main: invalid name 'A=B': must match"),
    (with_keys('"env":{"main":{"A":1}}'), "env.main.A: invalid value 1: must be printable text"),
    (with_keys('"env":{"main":{"A":"\\n"}}'), "env.main.A: invalid value '\\n'"),
    (with_keys('"env":{"main":{"A":"' + "x" * 1025 + '"}}'), "at most 1024 characters"),
    (
        with_keys('"env":{"main":{' + ",".join(f'"A{i}":""' for i in range(17)) + "}}"),
        "env.main: must be an object of 1 to 16 variables",
    ),
]


@pytest.mark.parametrize(("text", "reason"), MALFORMED)
def test_malformed_is_refused_with_the_field(text: str, reason: str) -> None:
    with pytest.raises(GrantsError) as caught:
        decode(text)
    assert reason in str(caught.value)
