"""What kube-scheduler asks: ExtenderArgs, ExtenderPreemptionArgs and ExtenderBindingArgs of
k8s.io/kube-scheduler, which has no JSON tags, so that fields are called as in Go.

Pure. The pod comes to `filter` and then to `prioritize`, and is read once. The names of the nodes
come in another order with nearly every call, since goroutines collect them: they are not known
again by their bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import orjson

from scheduler import requests
from scheduler.requests import Pending

Json = Mapping[str, Any]

_BETWEEN: Final = b',"Nodes":null,"NodeNames":'
"""What Go writes between the pod and the names."""


class ArgumentsError(Exception):
    """Not what kube-scheduler sends to an extender that is configured as ours has to be."""


class BindingArguments(NamedTuple):
    namespace: str
    name: str
    uid: str
    node: str

    @property
    def path(self) -> str:
        """Of the pod, at the API server."""
        namespace, name = quote(self.namespace, safe=""), quote(self.name, safe="")
        return f"/api/v1/namespaces/{namespace}/pods/{name}"


@dataclass(frozen=True, slots=True)
class Victims:
    """uids: pods of one node, which would be deleted. said: that, as it came."""

    uids: Sequence[str]
    said: Json


class Reader:
    """Remembers the last pod, by the bytes it stood in."""

    def __init__(self) -> None:
        self._last: tuple[bytes, Pending] | None = None

    def arguments(self, body: bytes) -> tuple[Pending, Sequence[str]]:
        """The pod, and the names of the nodes in question. Raises ArgumentsError.

        With its last members cut off and closed again, the body is the same object without them:
        if that and the names are JSON, so was the whole.
        """
        at = body.rfind(_BETWEEN)
        if at < 0 or body[-1:] != b"}":
            whole = _decode(body)
            return _read(whole), _names(whole.get("NodeNames"))
        return self._pending(body[:at]), _names(_load(body[at + len(_BETWEEN) : -1]))

    def _pending(self, head: bytes) -> Pending:
        """Of an object that is open yet."""
        if self._last is None or self._last[0] != head:
            self._last = head, _read(_decode(head + b"}"))
        return self._last[1]


def preemption(body: bytes) -> tuple[Pending, Mapping[str, Victims]]:
    """The pod, and by node who would make way for it. Raises ArgumentsError."""
    said = _decode(body)
    found = said.get("NodeNameToMetaVictims")
    if not isinstance(found, dict):
        raise ArgumentsError(
            "NodeNameToMetaVictims: expected an object; the extender is to be configured with"
            " nodeCacheCapable: true"
        )
    return _read(said), {node: _victims(each) for node, each in found.items()}


def binding(body: bytes) -> BindingArguments:
    """Raises ArgumentsError."""
    said = _decode(body)
    fields = [said.get(key) for key in ("PodNamespace", "PodName", "PodUID", "Node")]
    if not all(isinstance(field, str) and field for field in fields):
        raise ArgumentsError("PodNamespace, PodName, PodUID and Node: expected texts, each there")
    return BindingArguments(*fields)  # type: ignore[arg-type]


def _decode(body: bytes) -> Json:
    found = _load(body)
    if not isinstance(found, dict):
        raise ArgumentsError("the body: expected a JSON object")
    return found


def _load(text: bytes) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ArgumentsError(f"the body: not JSON: {error}") from None


def _read(said: Json) -> Pending:
    pod = said.get("Pod")
    if not isinstance(pod, dict):
        raise ArgumentsError("Pod: expected an object")
    return requests.pending(pod)


def _victims(found: object) -> Victims:
    listed = found.get("Pods") if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(listed, list):
        raise ArgumentsError("NodeNameToMetaVictims: expected objects, each with a list of Pods")
    named = [pod.get("UID") if isinstance(pod, dict) else None for pod in listed]
    uids = [uid for uid in named if isinstance(uid, str)]
    if len(uids) < len(named):
        raise ArgumentsError("NodeNameToMetaVictims: expected Pods with a UID each")
    return Victims(uids, found)


def _names(found: object) -> Sequence[str]:
    if not isinstance(found, list):
        raise ArgumentsError(
            "NodeNames: expected a list; the extender is to be configured with"
            " nodeCacheCapable: true"
        )
    try:
        "".join(found)
    except TypeError:
        raise ArgumentsError("NodeNames: expected a list of texts") from None
    return found
