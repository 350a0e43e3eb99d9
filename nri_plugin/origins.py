"""What shows that no scheduler wrote what a pod was granted. Pure; each rule is a fact, no guess.

A scheduler's part is written once, before the pod comes to its node: ours writes it in the Binding,
Koordinator's just before it. So neither writes it into a pod that nobody binds, nor changes it
later, and ours says who it is. Who writes it at a pod's creation, as they would, and has another
scheduler bind it, is not found here; he is held to the order of binding, as everybody is. What else
might seem to tell, and does not (managedFields, the writer's term), is in docs/adr/0027.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from contract import names
from nri_plugin.objects import Bound

_WRITTEN: Final = (names.ANNOTATION_DEVICE_ALLOCATED, names.ANNOTATION_GRANTS)
_CHANGED: Final = "annotation {key} was changed after the pod was bound"


def foreign(bound: Bound, before: Bound | None) -> str:
    """Why no scheduler wrote it; "": nothing says so, or it was granted nothing. before: as the API
    server had it when it was told of last."""
    if before is not None:
        another = bound.writer != before.writer
        by_writer = _CHANGED.format(key=names.ANNOTATION_WRITER) if another else ""
        return changed(bound.pod.annotations, before.pod.annotations) or by_writer
    if not granted(bound.pod.annotations):
        return ""
    return next(filter(None, (rule(bound) for rule in _AT_FIRST)), "")


def granted(annotations: Mapping[str, str]) -> bool:
    """Whether they say that the pod was."""
    return any(key in annotations for key in _WRITTEN)


def changed(now: Mapping[str, str], then: Mapping[str, str]) -> str:
    """Why somebody wrote a pod's annotations anew; "": nobody did. then: since it was bound."""
    keys = (key for key in _WRITTEN if now.get(key) != then.get(key))
    return next((_CHANGED.format(key=key) for key in keys), "")


def _unbound(bound: Bound) -> str:
    """A Binding writes both in one step; a kubelet adds the condition to those that have none."""
    if bound.scheduled:
        return ""
    return "it was made with its node, and bound by nobody (it has no condition PodScheduled)"


def _unsigned(bound: Bound) -> str:
    ours = bound.asks_us or names.ANNOTATION_GRANTS in bound.pod.annotations
    if bound.writer or not ours:
        return ""
    return f"annotation {names.ANNOTATION_WRITER}, which our scheduler writes with it, is not there"


_AT_FIRST: Final[Sequence[Callable[[Bound], str]]] = (_unbound, _unsigned)
