"""What kube-scheduler asks: ExtenderArgs and ExtenderBindingArgs of k8s.io/kube-scheduler, which
has no JSON tags, so that fields are called as in Go.

Pure. What was read before is known by its bytes and not decoded: the list of candidates, most of a
call's bytes, which comes again with the next pod; and the pod, which comes to `filter` and then to
`prioritize`. kube-scheduler collects the list from goroutines, so that its order may change from
call to call; then it is decoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from scheduler import pending
from scheduler.core.fleet import Fleet, Rows
from scheduler.pending import Pending

Json = Mapping[str, Any]

_BETWEEN: Final = b',"Nodes":null,"NodeNames":'
"""What Go writes between the pod and the names."""
_KEPT: Final = 4
_WORTH_KEEPING: Final = 64
"""Names: a shorter list is decoded as soon as it is compared."""


class ArgumentsError(Exception):
    """Not what kube-scheduler sends to an extender that is configured as ours has to be."""


class Candidates:
    """The nodes in question, and where they are in the fleet."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self._rows: Rows | None = None
        self._roster = 0

    def rows(self, fleet: Fleet) -> Rows:
        """[R], in the order of the names."""
        if self._rows is None or self._roster != fleet.roster:
            self._rows, self._roster = fleet.rows_of(self.names), fleet.roster
        return self._rows


@dataclass(frozen=True, slots=True)
class BindingArguments:
    namespace: str
    name: str
    uid: str
    node: str


class Reader:
    """Remembers the last long lists and the last pod, by the bytes they stood in."""

    def __init__(self) -> None:
        self._known: deque[tuple[bytes, Candidates]] = deque(maxlen=_KEPT)
        self._last: tuple[bytes, Pending] | None = None

    def arguments(self, body: bytes) -> tuple[Pending, Candidates]:
        """The pod and its candidates. Raises ArgumentsError.

        With its last members cut off and closed again, the body is the same object without them:
        if that and the list are JSON, so was the whole.
        """
        for tail, candidates in self._known:
            if body.endswith(tail):
                return self._pending(body[: -len(tail)]), candidates
        at = body.rfind(_BETWEEN)
        if at < 0 or body[-1:] != b"}":
            whole = _decode(body)
            return _read(whole), Candidates(_names(whole.get("NodeNames")))
        asked = self._pending(body[:at])
        candidates = Candidates(_names(_load(body[at + len(_BETWEEN) : -1])))
        if len(candidates.names) >= _WORTH_KEEPING:
            self._known.appendleft((body[at:], candidates))
        return asked, candidates

    def _pending(self, head: bytes) -> Pending:
        """Of an object that is open yet."""
        if self._last is None or self._last[0] != head:
            self._last = head, _read(_decode(head + b"}"))
        return self._last[1]


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
    return pending.read(pod)


def _names(found: object) -> Sequence[str]:
    if not isinstance(found, list):
        raise ArgumentsError(
            "NodeNames: expected a list; the extender is to be configured with"
            " nodeCacheCapable: true"
        )
    if not set(map(type, found)) <= {str}:
        raise ArgumentsError("NodeNames: expected a list of texts")
    return found
