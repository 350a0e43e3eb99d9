"""What the cluster's queues have and want, and what a pod of a queue waits for. Pure.

Kueue decides. The figures are computed from KAI's Queues, Kueue's Workloads and its LocalQueues by
the scheduler's functions, in thousandths of a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Any, Final, NamedTuple

from gpuslice.cli import cluster
from gpuslice.contract import names
from gpuslice.kube.fields import Json, at, objects
from scheduler.queues import kueue, status, tree

QUEUES: Final = f"/apis/{tree.API_VERSION}/{tree.PLURAL}"
WORKLOADS: Final = f"/apis/{kueue.API_VERSION}/workloads"
LOCAL_QUEUES: Final = f"/apis/{kueue.API_VERSION}/{kueue.PLURALS['LocalQueue']}"


class Held(StrEnum):
    """Why a pod of a queue has no node. The text is the headline."""

    QUOTA = "waits for quota"
    UNSERVED = "waits in a queue that cannot run it"
    STOPPED = "waits in a queue that is not served now"
    NO_LOCAL_QUEUE = "waits for its LocalQueue"
    FOREIGN = "waits in a queue of Kueue"
    ADMITTED = "waits for a GPU, and holds quota"


class Place(NamedTuple):
    """A pod's place in its queue. held: None if it has a node, or no queue."""

    held: Held | None = None
    lines: Sequence[str] = ()

    @property
    def is_gated(self) -> bool:
        return self.held not in (None, Held.ADMITTED)


@dataclass(frozen=True, slots=True)
class State:
    """problems: why queues are not served, by name. waiting: Workloads, in Kueue's order."""

    tree: tree.Tree
    shared: Mapping[str, kueue.Share]
    uses: Mapping[str, status.Use]
    local: status.Locals
    capacity: int
    problems: Mapping[str, str]
    waiting: Sequence[tuple[status.Work, Json]]


def read(queues: Sequence[Json], works: Sequence[Json], local: Iterable[Json], gpus: int) -> State:
    """Return the state of these Queues, Workloads and LocalQueues."""
    built, named = tree.build(queues, kueue.ROOT), locals_of(local)
    counted = [(work, raw) for raw in sorted(works, key=_order) if (work := status.work(raw))]
    problems = {
        str(at(raw, "metadata").get("name")): str(each.get("message"))
        for raw in queues
        for each in objects(at(raw, "status"), "conditions")
        if each.get("type") == status.READY and each.get("status") == "False"
    }
    return State(
        built,
        kueue.shares(built, gpus * tree.MILLI),
        status.uses(built, [work for work, _ in counted], (), named, 0.0),
        named,
        gpus * tree.MILLI,
        problems | {name: fault.message for name, fault in built.faults.items()},
        [(work, raw) for work, raw in counted if not work.is_admitted],
    )


def _order(raw: Json) -> tuple[int, str]:
    priority = at(raw, "spec").get("priority")
    created = str(at(raw, "metadata").get("creationTimestamp"))
    return -priority if isinstance(priority, int) else 0, created


def healthy(devices: Iterable[Json]) -> int:
    """Return the number of healthy GPUs."""
    return sum(gpu.healthy for node in cluster.read(devices, ()).nodes for gpu in node.gpus)


def locals_of(raws: Iterable[Json]) -> Mapping[tuple[str, str], str]:
    """Return the ClusterQueue of each LocalQueue, by namespace and name."""
    pairs = ((at(raw, "metadata"), at(raw, "spec").get("clusterQueue")) for raw in raws)
    return {(str(of.get("namespace")), str(of.get("name"))): str(name) for of, name in pairs}


def fair_shares(state: State) -> Mapping[str, float]:
    """Return what each queue gets, if all get what they want in KAI's order: up to the guarantee,
    then by weight up to the limit."""
    served, children = [*state.tree.served()], state.tree.children
    wants: dict[str, int] = {}
    for queue in reversed(served):
        below, most = children.get(queue.name), state.shared[queue.name].most
        asked = sum(wants[each] for each in below) if below else state.uses[queue.name].requested
        wants[queue.name] = asked if most is None else min(asked, most)
    fair: dict[str, float] = {"": state.capacity}
    for parent in ("", *(queue.name for queue in served)):
        siblings = children.get(parent, ())
        fair |= {name: min(wants[name], state.shared[name].guaranteed) for name in siblings}
        while hungry := [name for name in siblings if fair[name] < wants[name]]:
            rest = max(0.0, fair[parent] - sum(fair[name] for name in siblings))
            weight = sum(state.shared[name].weight for name in hungry)
            parts = {
                name: fair[name] + rest * state.shared[name].weight / weight for name in hungry
            }
            full = {name: wants[name] for name in hungry if wants[name] <= parts[name]}
            fair |= full or parts
            if not full:
                break
    return fair


def rows(state: State) -> list[dict[str, Any]]:
    """Return each queue as `-o json` shows it, parents first. Amounts are GPUs. A queue that is not
    served has no amounts."""
    fair, made = fair_shares(state), list[dict[str, Any]]()
    for queue in state.tree.served():
        share, use = state.shared[queue.name], state.uses[queue.name]
        amounts = {
            "quota": queue.quota,
            "guaranteed": share.guaranteed,
            "share": fair[queue.name],
            "used": use.allocated,
            "wanted": use.requested,
            "limit": share.most,
        }
        gpus = {key: None if n is None else round(n / tree.MILLI, 3) for key, n in amounts.items()}
        problem = state.problems.get(queue.name, "")
        counted = {"waiting": use.waiting, "problem": problem}
        made.append({"name": queue.name, "parent": queue.parent, **gpus, **counted})
    faults = state.tree.faults.items()
    return made + [{"name": name, "problem": fault.message} for name, fault in faults]


def place(state: State, raw: Json) -> Place:
    """Return the place of a pod."""
    pod, labels = status.pod(raw, -inf), at(at(raw, "metadata"), "labels")
    if names.LABEL_KUEUE_QUEUE not in labels:
        where = f"without queues.enabled or the namespace's label {names.LABEL_QUEUES}=true"
        text = f"has no effect: the pod requests no share, or was created {where}"
        kais = (names.LABEL_KAI_QUEUE, names.LABEL_RUNAI_QUEUE)
        return Place(None, [f"label {key} {text}" for key in kais if key in labels])
    if pod is None:
        return Place()
    key = pod.namespace, pod.queue
    name = state.local.get(key, pod.queue)
    if not pod.is_gated:
        text = f"queue {name}: Kueue admitted the pod, which counts as {kueue.gpus(pod.milli)} GPUs"
        return Place(None if pod.is_bound else Held.ADMITTED, [text + _borrowing(state, name)])
    if name in state.problems and name not in state.tree.faults:
        return Place(Held.STOPPED, [f"queue {name}: {state.problems[name]}"])
    said = status.events(
        state.tree, state.shared, state.uses, [pod], state.local, state.capacity, 0.0
    )
    event = next(said, None)
    if event and event.reason == names.EVENT_QUEUE_UNSERVED:
        return Place(Held.UNSERVED, [event.text])
    if key not in state.local:
        return Place(Held.NO_LOCAL_QUEUE, [f"no LocalQueue {pod.queue} in {pod.namespace} yet"])
    ahead = [
        w for work, w in state.waiting if state.local.get((work.namespace, work.queue)) == name
    ]
    lines = [
        f"queue {name}: place {number} of {len(ahead)}"
        for number, work in enumerate(ahead, 1)
        for owner in objects(at(work, "metadata"), "ownerReferences")
        if owner.get("uid") == pod.uid
    ]
    if event is None:
        return Place(Held.FOREIGN, lines or [f"queue {name}: no Workload of the pod waits in it"])
    return Place(Held.QUOTA, [event.text, *lines])


def _borrowing(state: State, name: str) -> str:
    use, share = state.uses.get(name), state.shared.get(name)
    if not use or not share or use.allocated <= share.guaranteed:
        return ""
    used, quota = kueue.gpus(use.allocated), kueue.gpus(share.guaranteed)
    return f"; the queue uses {used} of its quota of {quota}, so Kueue may delete its pods"
