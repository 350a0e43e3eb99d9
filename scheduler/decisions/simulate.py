"""Simulates placement: the GPUs that a pod would get, and why other nodes are refused.

It computes an `Account` from Kubernetes objects by the scheduler's own code, without I/O. It does
not evaluate kube-scheduler's criteria, such as affinity, taints, processors and volumes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gpuslice.contract import names
from gpuslice.kube.fields import at
from scheduler.core.columns import Columns
from scheduler.core.fit import fit, texts, why_not
from scheduler.core.place import Placement, Share, place
from scheduler.core.reasons import Reason
from scheduler.core.request import Policy
from scheduler.core.score import best, score
from scheduler.decisions.state import Assumed, State
from scheduler.dialects.reading import RequestError
from scheduler.dialects.table import DEFAULT, Enabled
from scheduler.kubernetes import requests, translate
from scheduler.kubernetes.facts import LeaseFacts, some_of
from scheduler.kubernetes.leases import agent_lease

Json = Mapping[str, Any]

_TEMPLATE_KINDS: Final = frozenset(
    {
        *("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob"),
        *("ReplicationController", "PodTemplate"),
    }
)
_SHOWN: Final = 10
"""The most node names shown for each reason."""


class SimulationError(ValueError):
    """The input is unusable. The text names the wrong part and the allowed values."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that fits. score: 0 to 1. containers: the shares that each would get on the node."""

    node: str
    score: float
    containers: Sequence[Share]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nodes that do not fit for the same reason. nodes: the names of all of them."""

    text: str
    nodes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Account:
    """The result for one pod, printed as JSON for programs. error: why the request is invalid.
    node: the best candidate; None if no node fits, or if the pod requests no share."""

    pod: str
    requests_share: bool
    placed: bool
    error: str | None = None
    node: str | None = None
    candidates: Sequence[Candidate] = ()
    refused: Sequence[Refusal] = ()


@dataclass(frozen=True, slots=True)
class Nearest:
    """The node that lacks least for a pod, and why the pod does not fit there."""

    node: str
    reason: Reason
    text: str


# --- the fleet -----------------------------------------------------------------------------------


def objects(documents: Iterable[object]) -> Iterator[Json]:
    """Yield the objects of the documents and of lists in them. Raise SimulationError."""
    for document in documents:
        if document is None:
            continue
        if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
            raise SimulationError("kind: must be that of a Kubernetes object")
        items = document.get("items")
        if document["kind"].endswith("List") and isinstance(items, list):
            inner = document["kind"].removesuffix("List")
            yield from objects({"kind": inner, **item} for item in items if isinstance(item, dict))
        else:
            yield document


def fleet(raws: Iterable[Json], now_s: float | None = None) -> State:
    """Return the State of Node, Device, Lease and Pod objects. If there is no Lease, for example in
    a handwritten fleet, every agent counts as ready.

    now_s: seconds since the epoch, for the age of Leases; None: the time of the latest renewal,
    because a file has no other time.
    """
    state = State()
    leases = []
    nodes = []
    for raw in raws:
        kind = raw["kind"]
        if kind == "Node":
            node = translate.node(raw)
            state.observe_node(node)
            nodes.append(node.name)
        elif kind == names.DEVICE_KIND:
            state.observe_device(translate.device(raw))
        elif kind == "Pod":
            state.observe_pod(translate.pod(raw))
        elif kind == "Lease" and (lease := agent_lease(raw)) is not None:
            leases.append(lease)
    if not nodes:
        raise SimulationError("fleet: must have a Node; add Nodes and their Devices")
    if not leases:
        for name in nodes:
            state.observe_lease(LeaseFacts(name, "assumed"), 0.0)
    if now_s is None:
        now_s = max((each.renewed_s or 0.0 for each in leases), default=0.0)
    for lease in leases:
        age_s = math.inf if lease.renewed_s is None else now_s - lease.renewed_s
        state.observe_lease(lease, 0.0, age_s)
    return state


def pods(raws: Iterable[Json]) -> Sequence[Json]:
    """Return the pods, and a pod for each workload's template. Raise SimulationError."""
    made: list[Json] = []
    for raw in raws:
        if raw["kind"] == "Pod":
            made.append(raw)
        elif raw["kind"] in _TEMPLATE_KINDS:
            made.append(_of_template(raw))
    if not made:
        raise SimulationError("file: must have a Pod, or a workload with a pod's template")
    return made


def _of_template(owner: Json) -> Json:
    kind, holder = owner["kind"], at(owner, "spec")
    if kind == "CronJob":
        holder = at(at(holder, "jobTemplate"), "spec")
    template = at(owner if kind == "PodTemplate" else holder, "template")
    if not template:
        raise SimulationError(f"{kind}.template: must be a pod's template")
    metadata = at(owner, "metadata")
    identity = {"name": metadata.get("name", ""), "namespace": metadata.get("namespace", "default")}
    return {**template, "kind": "Pod", "metadata": {**at(template, "metadata"), **identity}}


# --- placement -----------------------------------------------------------------------------------


def simulate(
    state: State,
    pod: Json,
    number: int = 0,
    policy: Policy = Policy.BINPACK,
    enabled: Enabled = DEFAULT,
) -> Account:
    """Place the pod, and keep its allocation for the placement of later pods. number: the pod's
    index in the simulation. enabled: the dialects in which pods may request shares."""
    metadata = at(pod, "metadata")
    pod_key = f"{metadata.get('namespace') or 'default'}/{metadata.get('name') or 'unnamed'}"
    try:
        request = requests.request(pod, enabled)
    except RequestError as error:
        return Account(pod_key, requests_share=True, placed=False, error=str(error))
    if request is None:
        return Account(pod_key, requests_share=False, placed=True)
    fleet, rows = state.fleet, state.fleet.all_rows()
    fits, reasons = fit(fleet, request, rows)
    scores = score(fleet, request, rows[fits], policy)
    placements, candidates = [], []
    for index in best(fleet, scores, rows[fits], len(scores)).tolist():
        placement = place(fleet, request, int(rows[fits][index]), policy)
        assert isinstance(placement, Placement)  # because `fit` found the node feasible
        placements.append(placement)
        rounded = round(float(scores[index]), 4)
        candidates.append(Candidate(placement.node, rounded, placement.shares))
    refused = []
    for reason, text in texts(fleet, request, rows[~fits], reasons[~fits]).items():
        there = [fleet.names[row] for row in rows[reasons == reason].tolist()]
        refused.append(Refusal(text, there))
    refused.sort(key=lambda each: (-len(each.nodes), each.text))
    if not placements:
        return Account(pod_key, requests_share=True, placed=False, refused=refused)
    state.assume(f"simulated-{number}", Assumed(placements[0], {}, 0.0), pod_key)
    return Account(pod_key, True, True, None, placements[0].node, candidates, refused)


def nearest(state: State, pod: Json, enabled: Enabled = DEFAULT) -> Nearest | None:
    """Return the nearest of the nodes that do not fit. None: there is none, or no valid request.

    A node that lacks only capacity is nearer than one that cannot take the pod, and one with a
    ready agent nearer than one without. Among equal nodes, the one with the largest free slice."""
    fleet, rows = state.fleet, state.fleet.all_rows()
    try:
        request = requests.request(pod, enabled)
    except RequestError:
        return None
    if request is None:
        return None
    fits, reasons = fit(fleet, request, rows)
    refused = rows[~fits]
    if not len(refused):
        return None
    # A node that lacks memory alone, or core alone, is nearer than one that lacks both.
    against = reasons[~fits].astype(int) * 2
    against[against == 2 * Reason.LEASES_LOST] = 2 * Reason.AGENT_LEASE_EXPIRED
    against[against == 2 * Reason.MEMORY_AND_CORE] = 2 * Reason.MEMORY - 1
    columns = Columns(fleet, request, refused, gather=True)
    column = "free_core" if against.max() == 2 * Reason.CORE else "free_bytes"
    free = np.where(columns.selected(), columns.gpu(column), 0)
    row = int(refused[np.lexsort((free.max(axis=0), against))[-1]])
    (reason,) = reasons[rows == row].tolist()
    return Nearest(fleet.names[row], Reason(reason), why_not(fleet, request, row))


# --- formatting ----------------------------------------------------------------------------------


def size(amount: int) -> str:
    """Return the bytes in GiB, MiB or B, with up to four significant digits."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB")):
        if amount >= unit:
            return f"{amount / unit:.4g} {name}"
    return f"{amount} B"


def names_shown(nodes: Sequence[str]) -> str:
    """Return the first _SHOWN names, in numeric order, and the number of the others."""

    def numbers(name: str) -> list[int | str]:
        return [int(part) if part.isdigit() else part for part in re.split("([0-9]+)", name)]

    return some_of(sorted(nodes, key=numbers), _SHOWN)
