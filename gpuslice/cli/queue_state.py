"""What a pod of a queue waits for. Pure. The figures are the scheduler's, in the Queues' status."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final, NamedTuple

from gpuslice.contract import names
from gpuslice.kube.fields import Json, at, objects
from scheduler.queues import figures, kueue, status

WORKLOADS: Final = f"{kueue.API}/workloads"
LOCAL_QUEUES: Final = f"{kueue.API}/{kueue.PLURALS['LocalQueue']}"


class Held(StrEnum):
    """Why a pod of a queue has no node. The text is the headline."""

    QUOTA = "waits for quota"
    UNSERVED = "waits in a queue that cannot run it"
    STOPPED = "waits in a queue that is not served"
    FOREIGN = "waits in a queue of Kueue"
    ADMITTED = "waits for a GPU, and holds quota"


class Place(NamedTuple):
    """A pod's place in its queue. held: None if it has a node, or no queue."""

    held: Held | None = None
    lines: Sequence[str] = ()

    @property
    def is_gated(self) -> bool:
        return self.held not in (None, Held.ADMITTED)


def place(
    raws: Sequence[Json], works: Sequence[Json], local_queues: Iterable[Json], raw: Json
) -> Place:
    """Return the place of a pod. raws: KAI's Queues. works: Kueue's Workloads."""
    pod, labels = figures.pod(raw), at(at(raw, "metadata"), "labels")
    if names.LABEL_KUEUE_QUEUE not in labels:
        where = f"without queues.enabled or the namespace's label {names.LABEL_QUEUES}=true"
        text = f"has no effect: the pod requests no share, or was created {where}"
        kais = (names.LABEL_KAI_QUEUE, names.LABEL_RUNAI_QUEUE)
        return Place(None, [f"label {key} {text}" for key in kais if key in labels])
    if pod is None:
        return Place()
    queues, local = figures.restore(raws), figures.locals_of(local_queues)
    key = pod.namespace, pod.queue
    name = local.get(key, pod.queue)
    queue, counts = queues.get(name), kueue.gpus(pod.milli)
    if not pod.is_gated:
        text = f"queue {name}: Kueue admitted the pod, which counts as {counts} GPUs"
        if queue and queue.used > queue.guaranteed:
            used, quota = kueue.gpus(queue.used), kueue.gpus(queue.guaranteed)
            text += f"; the queue uses {used} of its quota of {quota}, so Kueue may delete its pods"
        return Place(None if pod.is_bound else Held.ADMITTED, [text])
    if queue and queue.fault:
        return Place(Held.STOPPED, [f"queue {name}: {queue.fault.message}"])
    owners = [(objects(at(each, "metadata"), "ownerReferences"), each) for each in works]
    own = [work for of, work in owners if any(each.get("uid") == pod.uid for each in of)]
    read = [work for work in map(figures.work, own) if work]
    # A Job waits for all its pods.
    pod = replace(pod, milli=max((pod.milli, *(work.milli for work in read))))
    reason, text = status.obstacle(queues, pod, local, next((work.why for work in read), ""))
    if reason == names.EVENT_QUEUE_UNSERVED:
        return Place(Held.UNSERVED, [text])
    if key not in local:
        needs = f"the scheduler makes it if the namespace has the label {names.LABEL_QUEUES}=true"
        text = f"no LocalQueue {pod.queue} in {pod.namespace}: {needs}"
        return Place(Held.STOPPED, [text])
    waiting = [
        each
        for each in sorted(works, key=_order)
        if (work := figures.work(each)) and not work.is_admitted
        if local.get((work.namespace, work.queue)) == name
    ]
    lines = [
        f"queue {name}: place {number} of {len(waiting)}"
        for number, each in enumerate(waiting, 1)
        if each in own
    ]
    if not text:
        return Place(Held.FOREIGN, lines or [f"queue {name}: no Workload of the pod waits in it"])
    return Place(Held.QUOTA, [text, *lines])


def _order(work: Json) -> tuple[int, str]:
    """Return Kueue's order of waiting Workloads."""
    priority, created = at(work, "spec").get("priority"), at(work, "metadata")
    return -priority if isinstance(priority, int) else 0, str(created.get("creationTimestamp"))
