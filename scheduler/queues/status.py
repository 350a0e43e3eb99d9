"""What the scheduler says about queues: a Queue's status, and Events about pods. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gpuslice.contract import names
from gpuslice.kube.fields import Json, at, objects
from scheduler.queues import kueue
from scheduler.queues.figures import READY, UNPLACED_S, Locals, Pod, is_unplaceable, written
from scheduler.queues.kueue import gpus
from scheduler.queues.tree import MILLI, Finding, Queue, Queues

WAITED_S: Final = 3.0
"""The time at the gate after which an Event says what a pod waits for."""
_SHOWN: Final = 3
FOREIGN: Final = Finding("KAIInstalled", "KAI-Scheduler installed the CRD and owns Queues")
TAKEN: Final = "NameTaken"
_THEIRS: Final = (FOREIGN.reason, TAKEN)
"""Reasons why a Queue is not served whose name a user's own objects of Kueue may have."""

_UNPLACEABLE: Final = (
    f"Kueue admitted the pod in queue {{}}, but for {UNPLACED_S:.0f} s it has had no node. Perhaps"
    " no GPU has room: free parts of different GPUs do not add up to {}. `gpuslice explain` says"
    " more. The pod holds quota; deleting it gives the quota back"
)

PodEvent = tuple[str, tuple[str, str, str, str, str], str]
"""An Event's reason, what identifies its pod (the UID last), and the text."""


def status(raw: Json, queue: Queue, problem: Finding | None, cluster: int, now: str) -> Json | None:
    """Return the new status of the Queue `raw`, or None if it is as it should be. problem: why it
    is not served, which leaves the amounts as they are. cluster: all GPUs. now: the time of a
    change of the condition."""
    fault, notes, before = problem or queue.fault, [*kueue.notes(queue)], at(raw, "status")
    if queue.strays:
        some = f"{len(queue.strays)} name it: {', '.join(sorted(queue.strays)[:_SHOWN])}"
        text = f"the queue has children and starts no pods, but {some}"
        notes.insert(0, Finding("PodsInInnerQueue", text))
    said = [fault] if fault else notes or [Finding("Served", "Kueue serves the queue")]
    conditions = {each.get("type"): each for each in objects(before, "conditions")}
    old, is_true = conditions.get(READY, {}), "False" if fault else "True"
    conditions[READY] = {
        **{"type": READY, "status": is_true, "reason": said[0].reason},
        "message": "; ".join(each.message for each in said),
        "lastTransitionTime": old.get("lastTransitionTime")
        if old.get("status") == is_true
        else now,
    }
    after = {"conditions": [*conditions.values()], **({} if problem else written(queue, cluster))}
    return None if after.items() <= {**before}.items() else after


# --- Events


def events(
    queues: Queues,
    pods: Iterable[Pod],
    local: Locals,
    ages_s: Mapping[str, float],
    whys: Mapping[str, str],
) -> Iterator[PodEvent]:
    """Yield what the authors of pods must know. whys: other reasons to wait than limits, by UID."""
    for each in pods:
        if is_unplaceable(each, ages_s):
            name = local.get((each.namespace, each.queue), each.queue)
            reason, text = (
                names.EVENT_QUEUE_UNPLACEABLE,
                _UNPLACEABLE.format(name, _gpus(each.milli)),
            )
        elif each.is_gated:
            reason, text = obstacle(queues, each, local, whys.get(each.uid, ""))
        else:
            continue
        if text and (reason != names.EVENT_QUEUE_WAITING or ages_s[each.uid] >= WAITED_S):
            yield reason, ("v1", "Pod", each.namespace, each.name, each.uid), text


def obstacle(queues: Queues, each: Pod, local: Locals, why: str = "") -> tuple[str, str]:
    """Return the Event's reason and text for a pod at Kueue's gate; two empty ones if its queue is
    none of ours."""
    name = local.get((each.namespace, each.queue), each.queue)
    queue, must = queues.get(name), "the name of a Queue; there is none of this name"
    if queue and queue.is_leaf and not queue.fault:
        return names.EVENT_QUEUE_WAITING, _waiting(queue, each.milli, why)
    theirs = not queue or (queue.fault and queue.fault.reason in _THEIRS)
    if theirs and (each.namespace, each.queue) in local:
        return "", ""
    if queue and queue.fault:
        must = f"a Queue that is served; {queue.fault.message}"
    elif queue:
        some = ", ".join(below.name for below in queue.below[:_SHOWN])
        must = f"a Queue without children; it has {some}"
    written = f"metadata.labels[{each.label}]: invalid value {name}: must be"
    return names.EVENT_QUEUE_UNSERVED, f"{written} {must}"


def _waiting(leaf: Queue, milli: int, why: str) -> str:
    """Return what a pod of this size waits for: the first limit on its path that it would exceed,
    or else the GPUs that all queues share, and `why`."""
    begin = f"waits in queue {leaf.name} and requests {_gpus(milli)};"
    for queue in leaf.path():
        most, used = queue.most, gpus(queue.used)
        if most is not None and queue.used + milli > most:
            kind = "limit" if queue.limit == most else "quota, with overQuotaWeight 0,"
            if milli > most:
                return f"{begin} this is more than {queue.name}'s {kind} of {_gpus(most)}"
            return f"{begin} {queue.name}'s {kind} is {_gpus(most)}, and {used} in use"
    own, quota = gpus(leaf.used), gpus(leaf.guaranteed)
    every = f"{used} of {_gpus(queue.guaranteed)}"
    text = f"{begin} {leaf.name} uses {own} of its quota of {quota}, and all queues use {every}"
    return f"{text}; {why}" if why else text


def _gpus(milli: int) -> str:
    return f"{gpus(milli)} GPU{'' if milli == MILLI else 's'}"
