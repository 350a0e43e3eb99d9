"""The `gpuslice.io/grants` annotation: parsed strictly, since only gpuslice writes it."""

from __future__ import annotations

import pytest

from gpuslice.contract.grants import Document, GpuGrant, GrantsError, decode, encode, parse

GPU = '{"id":"GPU-a","minor":0,"memory":1024,"core":50}'
GRANTS = {"main": (GpuGrant("GPU-a", 0, 1024, 50),)}


def document(gpus: str = f"[{GPU}]", more: str = "") -> str:
    return f'{{"v":1,"containers":{{"main":{gpus}}}{more}}}'


def changed(old: str, new: str) -> str:
    return document().replace(old, new)


def test_text() -> None:
    assert encode(GRANTS) == document()
    assert decode(document()) == GRANTS
    assert parse(document()) == Document(GRANTS)
    # The default text has no optional keys, because agents of earlier releases cannot read them.
    assert encode(GRANTS, {}, "uuid") == document()


def test_text_of_other_dialects() -> None:
    variables = {"main": {"B": "2", "A": ""}}
    text = encode(GRANTS, variables, "index")
    assert text == document(more=',"env":{"main":{"A":"","B":"2"}},"visible":"index"')
    assert parse(text) == Document(GRANTS, variables, by_index=True)


AT = "containers.main"
VARIABLES = {
    "[]": "env: must be an object by container name",
    '{"side":{"A":"1"}}': "env.side: invalid container: must have a share",
    '{"main":{}}': "env.main: must be an object of 1 to 16 variables",
    '{"main":{' + ",".join(f'"A{i}":""' for i in range(17)) + "}}": "of 1 to 16 variables",
    '{"main":{"A=B":"1"}}': "env.main: invalid name 'A=B': must match",
    '{"main":{"A":1}}': "env.main.A: invalid value 1: must be printable text",
    '{"main":{"A":"\\n"}}': "env.main.A: invalid value '\\n'",
    '{"main":{"A":"' + "x" * 1025 + '"}}': "at most 1024 characters",
}
MALFORMED = [
    ("", "not JSON"),
    ("[" * 100_000, "not JSON"),
    ("[]", "invalid type list: must be an object"),
    ('{"v":2,"containers":{}}', "v: invalid value 2: must be 1"),
    ('{"v":true,"containers":{}}', "v: invalid value True: must be 1"),
    (document(more=',"pods":{}'), "unknown key pods: must be one of containers, env, v, visible"),
    ('{"v":1,"containers":{},"containers":{}}', "duplicate key in v, containers, containers"),
    (changed('"core"', '"cores":1,"core"'), f"{AT}[0]: unknown key cores"),
    (changed('"core"', '"core":1,"core"'), "duplicate key in id"),
    ('{"v":1}', "containers: must be an object"),
    *((document(gpus), f"{AT}: must be a list of 1 to 16 GPUs") for gpus in ("{}", "[]")),
    (document("[1]"), f"{AT}[0]: invalid type int: must be an object"),
    (document(f"[{GPU},{GPU}]"), "duplicate GPU"),
    (changed('"GPU-a"', '""'), f"{AT}[0].id"),
    (changed("1024", "0"), f"{AT}[0].memory: invalid value 0"),
    (changed("1024", "1.5"), f"{AT}[0].memory: invalid value 1.5"),
    (changed("50", "101"), f"{AT}[0].core: invalid value 101"),
    (changed("50", "true"), f"{AT}[0].core: invalid value True"),
    (changed('"minor":0', '"minor":-1'), f"{AT}[0].minor: invalid value -1"),
    (document(more=',"visible":null'), "visible: invalid value None: must be index"),
    (document(more=',"visible":"uuid"'), "visible: invalid value 'uuid': must be index"),
    *((document(more=f',"env":{text}'), reason) for text, reason in VARIABLES.items()),
]


@pytest.mark.parametrize(("text", "reason"), MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_is_refused_with_the_field(text: str, reason: str) -> None:
    with pytest.raises(GrantsError) as caught:
        decode(text)
    assert reason in str(caught.value)
