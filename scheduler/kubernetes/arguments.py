"""Reads kube-scheduler's calls: ExtenderArgs, ExtenderPreemptionArgs and ExtenderBindingArgs of
k8s.io/kube-scheduler. The Go types have no JSON tags, so fields are named as in Go.

kube-scheduler sends the same pod with `filter` and then with `prioritize`, so the parsed pod is
cached. Node names are not cached: goroutines collect them, so their order differs by call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import orjson

from gpuslice.kube.fields import Json
from scheduler.dialects.table import DEFAULT, Enabled
from scheduler.kubernetes import requests
from scheduler.kubernetes.requests import Pending

_BETWEEN: Final = b',"Nodes":null,"NodeNames":'
"""The bytes that Go writes between the pod and the node names."""
_VICTIMS: Final = b',"NodeNameToVictims":null,"NodeNameToMetaVictims":{'
"""The bytes that Go writes between the pod and the victims."""
_NODE_END: Final = re.compile(rb'\],"NumPDBViolations":\d+\},(?=")')
"""The bytes that Go writes between the victims of two nodes. A JSON string cannot contain them,
because its quotes are escaped."""
PART_BYTES: Final = 128 << 10
"""Least size of a part: some 2,000 victims. A part has all victims of each of its nodes."""


class ArgumentsError(Exception):
    """The body is not what kube-scheduler sends to a correctly configured extender."""


class BindingArguments(NamedTuple):
    namespace: str
    name: str
    uid: str
    node: str

    @property
    def path(self) -> str:
        """Return the pod's path at the API server."""
        return requests.pod_path(self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class Victims:
    """The pods of one node that preemption would delete. uids: their UIDs. received: the JSON
    object of these pods from kube-scheduler."""

    uids: Sequence[str]
    received: Json

    @property
    def violations(self) -> int:
        """Return how many of the pods violate a PodDisruptionBudget."""
        return int(self.received.get("NumPDBViolations") or 0)


class Reader:
    """Parses calls, and caches the last pod by its bytes. enabled: the dialects that are on."""

    def __init__(self, enabled: Enabled = DEFAULT) -> None:
        self._enabled = enabled
        self._last: tuple[bytes, Pending] | None = None

    def arguments(self, body: bytes) -> tuple[Pending, Sequence[str]]:
        """Return the pod, and the names of the candidate nodes. Raise ArgumentsError.

        The body is cut before its members Nodes and NodeNames. The first part, with a brace added,
        and the names are parsed as two documents. If both are valid JSON, so is the body.
        """
        start = body.rfind(_BETWEEN)
        if start < 0 or body[-1:] != b"}":
            whole = _decode(body)
            return _read(whole, self._enabled), _names(whole.get("NodeNames"))
        return self._pending(body[:start]), _names(_load(body[start + len(_BETWEEN) : -1]))

    def preemption(self, body: bytes) -> tuple[Pending, Iterator[Mapping[str, Victims]]]:
        """Return the pod, and an iterator over parts of its potential victims, by node. Both the
        call and the iterator raise ArgumentsError.

        Each part has some PART_BYTES and is parsed as a document of its own. If the pod and all
        parts are valid JSON, so is the body.
        """
        start = body.find(_VICTIMS)
        if start < 0 or body[-2:] != b"}}":
            whole = _decode(body)
            victims = _victims(whole.get("NodeNameToMetaVictims"))
            return _read(whole, self._enabled), iter((victims,))
        return self._pending(body[:start]), _parts(body, start + len(_VICTIMS), len(body) - 2)

    def _pending(self, head: bytes) -> Pending:
        """Parse the pod. head: a JSON object without its closing brace."""
        if self._last is None or self._last[0] != head:
            self._last = head, _read(_decode(head + b"}"), self._enabled)
        return self._last[1]


def binding(body: bytes) -> BindingArguments:
    """Return the arguments of a bind call. Raise ArgumentsError."""
    document = _decode(body)
    fields = [document.get(key) for key in ("PodNamespace", "PodName", "PodUID", "Node")]
    if not all(isinstance(field, str) and field for field in fields):
        raise ArgumentsError(
            "PodNamespace, PodName, PodUID and Node: must be strings that are not empty"
        )
    return BindingArguments(*fields)  # type: ignore[arg-type]


def _decode(body: bytes) -> Json:
    document = _load(body)
    if not isinstance(document, dict):
        raise ArgumentsError("body: must be a JSON object")
    return document


def _load(text: bytes) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ArgumentsError(f"body: must be JSON: {error}") from None


def _read(document: Json, enabled: Enabled) -> Pending:
    pod = document.get("Pod")
    if not isinstance(pod, dict):
        raise ArgumentsError("Pod: must be an object")
    return requests.pending(pod, enabled)


def _parts(body: bytes, start: int, end: int) -> Iterator[Mapping[str, Victims]]:
    """Yield the victims in parts. start, end: where NodeNameToMetaVictims has its members."""
    while (cut := _NODE_END.search(body, start + PART_BYTES, end)) is not None:
        yield _victims(_load(b"{%b}" % body[start : cut.end() - 1]))
        start = cut.end()
    yield _victims(_load(b"{%b}" % body[start:end]))


def _victims(document: object) -> Mapping[str, Victims]:
    if not isinstance(document, dict):
        raise ArgumentsError(
            "NodeNameToMetaVictims: must be an object; configure the extender with"
            " nodeCacheCapable: true"
        )
    victims = {}
    for node, each in document.items():
        listed = each.get("Pods") if isinstance(each, dict) else None
        if not isinstance(listed, list):
            raise ArgumentsError("NodeNameToMetaVictims: must be objects, each with a list of Pods")
        try:
            uids = [pod["UID"] for pod in listed]
            "".join(uids)
        except (TypeError, KeyError):
            raise ArgumentsError("NodeNameToMetaVictims: must be Pods with a UID each") from None
        victims[node] = Victims(uids, each)
    return victims


def _names(names: object) -> Sequence[str]:
    if not isinstance(names, list):
        raise ArgumentsError(
            "NodeNames: must be a list; configure the extender with nodeCacheCapable: true"
        )
    try:
        "".join(names)
    except TypeError:
        raise ArgumentsError("NodeNames: must be a list of strings") from None
    return names
