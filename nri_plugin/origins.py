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

from contract import allocation, names
from nri_plugin.objects import Bound

_CHANGED: Final = "annotation {key} was changed after the pod was bound"


def foreign(bound: Bound, before: Bound | None) -> str:
    """Why no scheduler wrote it; "": nothing says so, or it was granted no GPU. before: as the API
    server had it when it was told of last."""
    now = bound.pod.annotations
    if before is not None:
        then = before.pod.annotations
        another = granted(now) and bound.writer != before.writer
        by_writer = _CHANGED.format(key=names.ANNOTATION_WRITER) if another else ""
        return changed(now, then) or by_writer
    if not granted(now):
        return ""
    return next(filter(None, (rule(bound) for rule in _AT_FIRST)), "")


def granted(annotations: Mapping[str, str]) -> bool:
    """Whether they grant the pod a part of a GPU; other devices do not matter here."""
    return names.ANNOTATION_GRANTS in annotations or bool(gpus(annotations))


def gpus(annotations: Mapping[str, str]) -> tuple[allocation.DeviceEntry, ...]:
    """The GPUs of a pod's allocation; what cannot be read names none."""
    text = annotations.get(names.ANNOTATION_DEVICE_ALLOCATED)
    try:
        return tuple(allocation.decode(text).gpus) if text is not None else ()
    except allocation.AllocationError:
        return ()


def differing(now: Mapping[str, str], then: Mapping[str, str]) -> str:
    """The annotation in which two versions of a pod's grant differ; empty: none."""
    if gpus(now) != gpus(then):
        return names.ANNOTATION_DEVICE_ALLOCATED
    grants = names.ANNOTATION_GRANTS
    return grants if now.get(grants) != then.get(grants) else ""


def changed(now: Mapping[str, str], then: Mapping[str, str]) -> str:
    """Why a pod's grant is not the one of its binding; empty: it is. then: since it was bound."""
    key = differing(now, then)
    return _CHANGED.format(key=key) if key else ""


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
