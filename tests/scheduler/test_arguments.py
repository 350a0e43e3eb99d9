"""What kube-scheduler asks, as bytes."""

from __future__ import annotations

import json
import random

import pytest

from scheduler import arguments
from scheduler.arguments import ArgumentsError, BindingArguments, Reader
from scheduler.core.fleet import Fleet
from tests.scheduler import calls

MANY = calls.names(100)


def test_a_call_gives_the_pod_and_the_names_in_their_order() -> None:
    pending, candidates = Reader().arguments(calls.arguments(calls.pod("u-7"), ["n1", "n0"]))
    assert (pending.uid, pending.version, pending.profile) == ("u-7", "1", "gpuslice-scheduler")
    assert candidates.names == ["n1", "n0"]


def test_a_list_that_comes_again_is_known_by_its_bytes() -> None:
    reader = Reader()
    _, first = reader.arguments(calls.arguments(calls.pod("u-1"), MANY))
    pending, again = reader.arguments(calls.arguments(calls.pod("u-2"), MANY))
    assert (again is first, pending.uid) == (True, "u-2")
    shuffled = random.Random(1).sample(MANY, len(MANY))
    _, other = reader.arguments(calls.arguments(calls.pod("u-3"), shuffled))
    assert other.names == shuffled


def test_a_pod_that_comes_again_is_known_by_its_bytes() -> None:
    reader = Reader()
    first, _ = reader.arguments(calls.arguments(calls.pod("u-1"), MANY))
    again, candidates = reader.arguments(calls.arguments(calls.pod("u-1"), ["n3"]))
    assert again is first
    assert candidates.names == ["n3"]


def test_only_long_lists_are_kept_and_of_them_the_last() -> None:
    reader = Reader()
    _, short = reader.arguments(calls.arguments(calls.pod(), MANY[:3]))
    _, again = reader.arguments(calls.arguments(calls.pod(), MANY[:3]))
    assert again is not short
    lists = [[f"{name}-{number}" for name in MANY] for number in range(5)]
    kept = [reader.arguments(calls.arguments(calls.pod(), each))[1] for each in lists]
    for each, candidates in list(zip(lists, kept, strict=True))[1:]:
        assert reader.arguments(calls.arguments(calls.pod(), each))[1] is candidates
    assert reader.arguments(calls.arguments(calls.pod(), lists[0]))[1] is not kept[0]


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
    made = calls.pod(annotations={"note": text, text: "note"})
    reader = Reader()
    for _ in range(2):
        pending, candidates = reader.arguments(calls.arguments(made, MANY))
        assert (pending.uid, candidates.names) == ("u-1", MANY)


def test_a_list_within_the_pod_is_not_the_list() -> None:
    """In an order that Go does not write: an error, and no wrong list."""
    inner = {"Nodes": None, "NodeNames": ["evil"]}
    body = json.dumps({"NodeNames": MANY, "Pod": {**calls.pod(), **inner}}, separators=(",", ":"))
    with pytest.raises(ArgumentsError):
        Reader().arguments(body.encode())


def test_members_in_any_order_and_with_blanks_are_read() -> None:
    body = json.dumps({"NodeNames": ["n0"], "Pod": calls.pod()}, indent=1).encode()
    pending, candidates = Reader().arguments(body)
    assert (pending.uid, candidates.names) == ("u-1", ["n0"])


POD = calls.dumps(calls.pod()).decode()


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("", "not JSON"),
        ("[]", "expected a JSON object"),
        ("{}", "Pod: expected an object"),
        (f'{{"Pod":{POD}}}', "nodeCacheCapable: true"),
        (f'{{"Pod":{POD},"Nodes":{{"items":[]}},"NodeNames":null}}', "nodeCacheCapable: true"),
        (f'{{"Pod":{POD},"Nodes":null,"NodeNames":null}}', "nodeCacheCapable: true"),
        (f'{{"Pod":{POD},"Nodes":null,"NodeNames":["a",1]}}', "a list of texts"),
        (f'{{"Pod":{POD},"Nodes":null,"NodeNames":["a"}}', "not JSON"),
        (f'{{"Pod":{POD},"Nodes":null,"NodeNames":["a"]', "not JSON"),
        (f'{{"Pod":{POD},"Nodes":null,"NodeNames":["a"]}}}}', "not JSON"),
        (f'{{"Pod":{POD}}},"Nodes":null,"NodeNames":["a"]}}', "not JSON"),
        ('{"Pod":[],"Nodes":null,"NodeNames":["a"]}', "Pod: expected an object"),
        ('{"Pod":null,"Nodes":null,"NodeNames":["a"]}', "Pod: expected an object"),
    ],
)
def test_what_is_no_call_of_ours_is_told(body: str, problem: str) -> None:
    reader = Reader()
    for _ in range(2):
        with pytest.raises(ArgumentsError, match=problem):
            reader.arguments(body.encode())


def test_a_known_list_behind_a_broken_pod_is_no_call() -> None:
    reader = Reader()
    whole = calls.arguments(calls.pod(), MANY)
    reader.arguments(whole)
    with pytest.raises(ArgumentsError, match="not JSON"):
        reader.arguments(whole[1:])


def test_rows_are_found_again_when_nodes_came_or_went() -> None:
    fleet = Fleet()
    _, candidates = Reader().arguments(calls.arguments(calls.pod(), ["n0", "n1"]))
    assert candidates.rows(fleet).tolist() == [0, 0]
    fleet.add("n1")
    assert candidates.rows(fleet).tolist() == [0, 1]
    rows = candidates.rows(fleet)
    fleet.add("n1")
    assert candidates.rows(fleet) is rows
    fleet.remove("n1")
    fleet.add("n0")
    assert candidates.rows(fleet).tolist() == [1, 0]


def test_a_binding_names_the_pod_and_the_node() -> None:
    wanted = arguments.binding(calls.binding(calls.pod("u-1"), "n1"))
    assert wanted == BindingArguments("default", "pod-u-1", "u-1", "n1")


@pytest.mark.parametrize("key", ["PodName", "PodNamespace", "PodUID", "Node"])
@pytest.mark.parametrize("value", ["", None, 1])
def test_a_binding_lacks_nothing(key: str, value: object) -> None:
    said = json.loads(calls.binding(calls.pod(), "n1"))
    with pytest.raises(ArgumentsError, match="PodUID"):
        arguments.binding(calls.dumps({**said, key: value}))
