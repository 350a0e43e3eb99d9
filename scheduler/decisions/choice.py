"""Chooses the pod's GPUs on the node that kube-scheduler selected, and the Binding's content.

It reads the state and changes nothing. `binder` reserves the chosen GPUs and sends the Binding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from scheduler.core.fit import why_not
from scheduler.core.place import Placement
from scheduler.core.request import Policy, Request
from scheduler.decisions.state import State
from scheduler.kubernetes import binding
from scheduler.kubernetes.requests import Pending


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a bind. error: "" if the pod is bound to the requested node."""

    error: str = ""


BOUND: Final = Answer()


@dataclass(frozen=True, slots=True)
class Undetermined:
    """Returned by `choose` if the binder must read the pod before the choice."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The content of a Binding, empty for a pod without a share. version: the API server applies
    the Binding only if the pod has this resourceVersion."""

    request: Request | None = None
    placement: Placement | None = None
    annotations: Mapping[str, str] | None = None
    version: str = ""


def choose(
    state: State, pending: Pending, node: str, policy: Policy, now_ns: int
) -> Choice | Answer | Undetermined:
    """Choose the Binding's content. policy: used if the pod has none. now_ns: since the epoch."""
    uid = pending.uid
    if state.is_bound(uid):
        return bound_to(state.node_of(uid), node)
    if pending.refusal:
        return Answer(pending.refusal)
    if pending.request is None:
        return Choice()
    assumed = state.assumed.get(uid)
    if not pending.version or (assumed is not None and assumed.placement.node != node):
        return Undetermined()
    if assumed is not None:
        return Choice(pending.request, assumed.placement, assumed.annotations, pending.version)
    placement = _place(state, pending, pending.request, node, policy)
    if isinstance(placement, Answer):
        return placement
    gpus = state.fleet.gpus[state.fleet.row_of(node)]
    annotations = binding.annotations_of(placement, pending.outputs(placement, gpus, now_ns))
    return Choice(pending.request, placement, annotations, pending.version)


def bound_to(node: str | None, wanted: str) -> Answer:
    """Return the answer to a bind to node `wanted`, if the pod is already bound to `node`."""
    return BOUND if node == wanted else Answer(f"the pod is bound to {node}")


def _place(
    state: State, pending: Pending, request: Request, node: str, policy: Policy
) -> Placement | Answer:
    """Return GPUs reserved for the pod on this node, else unreserved ones, else GPUs reserved for
    pods of lower priority, else the answer that none fit."""
    reserved = state.reservations.placement(pending.uid, request, node)
    if reserved is not None:
        return reserved
    placement = state.place(pending, request, node, policy)
    if isinstance(placement, Placement):
        return placement
    return Answer(f"node {node}: {why_not(state.fleet, request, state.fleet.row_of(node))}")
