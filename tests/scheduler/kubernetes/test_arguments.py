"""Parsing of kube-scheduler's calls."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from scheduler.kubernetes import arguments
from scheduler.kubernetes.arguments import ArgumentsError, BindingArguments, Reader
from scheduler.kubernetes.requests import Pending
from tests.scheduler import calls

MANY = calls.names(100)
POD = calls.dumps(calls.pod()).decode()


def test_a_call_gives_the_pod_and_the_names_in_their_order() -> None:
    """JSON members in another order, and whitespace between them, are accepted too."""
    raw = calls.pod("u-7")
    blanks = json.dumps({"NodeNames": ["n1", "n0"], "Pod": raw}, indent=1).encode()
    for body in (calls.arguments(raw, ["n1", "n0"]), blanks):
        pending, names = Reader().arguments(body)
        assert (pending.uid, pending.version, pending.profile) == ("u-7", "1", "gpuslice-scheduler")
        assert names == ["n1", "n0"]


@pytest.mark.parametrize(
    "text",
    [
        ',"Nodes":null,"NodeNames":["evil"]}',
        '"},"Nodes":null,"NodeNames":["evil"]}',
        "\\",
        '\\",\\"Nodes\\":null,\\"NodeNames\\":[]}',
    ],
)
def test_what_a_pods_author_writes_is_never_taken_for_the_list(text: str) -> None:
    made, reader = calls.pod(annotations={"note": text, text: "note"}), Reader()
    pending, names = reader.arguments(calls.arguments(made, MANY))
    assert (pending.uid, names) == ("u-1", MANY)
    again, names = reader.arguments(calls.arguments(made, MANY))
    assert again is pending and names == MANY


def test_a_list_within_the_pod_is_not_the_list() -> None:
    """The call's list precedes a pod with a member NodeNames. Go never writes such a call."""
    raw = {**calls.pod(), "Nodes": None, "NodeNames": ["evil"]}
    with pytest.raises(ArgumentsError):
        Reader().arguments(calls.dumps({"NodeNames": MANY, "Pod": raw}))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("", "must be JSON"),
        ("[]", "must be a JSON object"),
        ("{}", "Pod: must be an object"),
        ('{"Pod":POD}', "nodeCacheCapable: true"),
        ('{"Pod":POD,"Nodes":{"items":[]},"NodeNames":null}', "nodeCacheCapable: true"),
        ('{"Pod":POD,"Nodes":null,"NodeNames":null}', "nodeCacheCapable: true"),
        ('{"Pod":POD,"Nodes":null,"NodeNames":["a",1]}', "a list of strings"),
        ('{"Pod":POD,"Nodes":null,"NodeNames":["a"}', "must be JSON"),
        ('{"Pod":POD,"Nodes":null,"NodeNames":["a"]}}', "must be JSON"),
        ('{"Pod":POD},"Nodes":null,"NodeNames":["a"]}', "must be JSON"),
        ('{"Pod":[],"Nodes":null,"NodeNames":["a"]}', "Pod: must be an object"),
        ('{"Pod":null,"Nodes":null,"NodeNames":["a"]}', "Pod: must be an object"),
    ],
)
def test_an_invalid_call_is_refused_with_the_problem(body: str, problem: str) -> None:
    reader = Reader()
    for _ in range(2):
        with pytest.raises(ArgumentsError, match=problem):
            reader.arguments(body.replace("POD", POD).encode())


def test_a_binding_names_the_pod_and_the_node() -> None:
    wanted = arguments.binding(calls.binding(calls.pod("u-1"), "n1"))
    assert wanted == BindingArguments("default", "pod-u-1", "u-1", "n1")


@pytest.mark.parametrize("key", ["PodName", "PodNamespace", "PodUID", "Node"])
@pytest.mark.parametrize("value", ["", None, 1])
def test_a_binding_with_a_missing_field_is_refused(key: str, value: object) -> None:
    said = json.loads(calls.binding(calls.pod(), "n1"))
    with pytest.raises(ArgumentsError, match="PodUID"):
        arguments.binding(calls.dumps({**said, key: value}))


# --- victims


def test_victims_are_read_in_parts_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part has all victims of some nodes. No text in a node's name affects the division."""
    wanted = {f"n{n}": [f"{n}-{k}" for k in range(n % 5)] for n in range(300)}
    strange = '"],"NumPDBViolations":0},"'
    wanted[strange] = [strange]
    body = calls.preemption(calls.pod(annotations={"note": strange}), wanted)
    monkeypatch.setattr(arguments, "PART_BYTES", 1000)
    pending, read_parts = Reader().preemption(body)
    assert pending.uid == "u-1"
    parts = list(read_parts)
    read = [(node, each.uids, each.received) for part in parts for node, each in part.items()]
    said = calls.metas(wanted)
    assert read == [(node, wanted[node], said[node]) for node in wanted]
    assert len(parts) > 10
    for part in parts:
        assert len(calls.dumps({node: each.received for node, each in part.items()})) < 1000 + 200


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ("null", "nodeCacheCapable: true"),
        ("[]", "nodeCacheCapable: true"),
        ('{"n0":null}', "each with a list of Pods"),
        ('{"n0":{}}', "each with a list of Pods"),
        ('{"n0":{"Pods":null}}', "each with a list of Pods"),
        ('{"n0":{"Pods":["a"]}}', "a UID each"),
        ('{"n0":{"Pods":[{}]}}', "a UID each"),
        ('{"n0":{"Pods":[{"UID":1}]}}', "a UID each"),
    ],
)
def test_what_is_no_question_about_victims_is_refused(found: str, problem: str) -> None:
    """Only the victims' part of the call is malformed."""
    members = f'"NodeNameToVictims":null,"NodeNameToMetaVictims":{found}'
    with pytest.raises(ArgumentsError, match=problem):
        list(Reader().preemption(f'{{"Pod":{POD},{members}}}'.encode())[1])


# --- altered calls


def _named(body: bytes) -> tuple[Pending, object]:
    return Reader().arguments(body)


def _victims(body: bytes) -> tuple[Pending, object]:
    pending, parts = Reader().preemption(body)
    return pending, {node: each.received for part in parts for node, each in part.items()}


WHOLE = calls.arguments(calls.pod(annotations={"note": ',"Nodes":null'}), ["n0", "n1"])
VICTIMS = calls.preemption(calls.pod(), {"n0": ["a", "b"], "n1": [], "n2": ["c"]})


def test_victims_before_the_pod_are_read_as_a_whole() -> None:
    said = json.loads(VICTIMS)
    turned = calls.dumps({key: said[key] for key in ("NodeNameToMetaVictims", "Pod")})
    for body in (turned, VICTIMS + b"\n"):
        assert _victims(body) == _victims(VICTIMS)


@pytest.mark.parametrize(
    ("whole", "read", "key", "piece"),
    [
        (WHOLE, _named, "NodeNames", b',"Nodes":null,"NodeNames":'),
        (VICTIMS, _victims, "NodeNameToMetaVictims", b'],"NumPDBViolations":0},'),
    ],
)
def test_an_altered_call_is_an_error_or_read_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, whole: bytes, read: Any, key: str, piece: bytes
) -> None:
    """Bytes are moved, doubled, dropped or replaced. The call then gives an error, or the same
    result as decoding the whole body."""
    monkeypatch.setattr(arguments, "PART_BYTES", 40)
    chance, accepted = random.Random(7), 0
    pieces = (b'"', b"\\", b",", b"{", b"}", b"[", b"]", b"null", b"n0", piece)
    for _ in range(4000):
        body = whole
        for _ in range(chance.randint(1, 3)):
            at, to = sorted(chance.choices(range(len(body) + 1), k=2))
            to = min(to, at + 30)
            put = chance.choice((b"", body[at:to] * 2, chance.choice(pieces), whole[-40:]))
            body = body[:at] + put + body[chance.choice((at, to)) :]
        try:
            pending, found = read(body)
        except ArgumentsError:
            continue
        accepted += 1
        said = json.loads(body)
        assert found == said[key]
        again = calls.dumps({**said, "Nodes": None, "NodeNames": []})
        assert pending == Reader().arguments(again)[0]
    assert accepted > 100
