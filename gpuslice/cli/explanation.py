"""Explains a pod from what the API server has: why it waits, was refused or is slow. Pure.

An explanation has at most MAX_LINES lines, and the last one says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuslice.cli import remedies
from gpuslice.cli.cluster import (
    Gpu,
    Slice,
    container_statuses,
    scheduling_condition,
    waiting_containers,
)
from gpuslice.cli.remedies import Do
from gpuslice.contract import dialects, names
from gpuslice.contract.grant_file import Policy
from gpuslice.kube.fields import NOTHING, Json, at, objects, texts
from gpuslice.kube.log_lines import printable
from scheduler import events as scheduler_events
from scheduler.core.reasons import Reason
from scheduler.decisions.simulate import Account, Nearest, names_shown, size
from scheduler.kubernetes.facts import some_of

MAX_LINES: Final = 10
_MAX_CHARS: Final = 400
_DELAYED: Final = 0.05
"""A pod is slow by gpuslice if its launches wait for a larger part of the time."""
_FULL: Final = 0.9
"""A pod with this part of a GPU's time fills the GPU."""
_PREEMPTION: Final = r",?( no new claims to deallocate,)? preemption: "
_GROUPS: Final = 3
"""The most lines of nodes, of containers and of Events."""
_EVENTS_KEPT: Final = "the API server keeps Events for an hour by default"


@dataclass(frozen=True, slots=True)
class Facts:
    """What was read. pod: None if there is none of this name. events: of the pod, or of the
    namespace's workloads if there is no pod, the latest first. account, nearest: the placement that
    the scheduler would choose now; None if it cannot be computed. gpus: of the pod's node. unready:
    why agents are not ready, by node. missing: rights that the user lacks."""

    namespace: str
    name: str
    pod: Json | None
    events: Sequence[Json] = ()
    account: Account | None = None
    nearest: Nearest | None = None
    gpus: Sequence[Gpu] = ()
    alike: Sequence[str] = ()
    """Pods whose names begin with this one, if there is no pod of it."""
    unready: Mapping[str, str] = field(default_factory=dict)
    missing: Sequence[str] = ()

    @property
    def slices(self) -> Sequence[tuple[Gpu, Slice]]:
        """The pod's slices, with their GPUs."""
        own = self.namespace, self.name
        pairs = ((gpu, each) for gpu in self.gpus for each in gpu.slices)
        return [(gpu, each) for gpu, each in pairs if (each.namespace, each.pod) == own]


@dataclass(frozen=True, slots=True)
class _Found:
    """A finding. headline: the rest of the first line."""

    headline: str
    lines: Sequence[str]
    do: Do
    node: str = ""


def explain(facts: Facts) -> Sequence[str]:
    """Return the lines of the explanation."""
    found = _explained(facts)
    extra = []
    if facts.missing:
        extra.append(f"missing rights, so this is incomplete: {'; '.join(facts.missing)}")
    elif not facts.events and facts.pod is not None:
        extra.append(f"no Events: computed from the current state ({_EVENTS_KEPT})")
    do = found.do.format(
        pod=facts.name, namespace=facts.namespace, node=found.node or _node(facts) or "NODE"
    )
    lines = [f"pod {facts.namespace}/{facts.name}: {found.headline}", *found.lines]
    lines = lines[: MAX_LINES - 1 - len(extra)] + extra
    return [_cut(lines[0]), *(f"  {_cut(each)}" for each in lines[1:]), f"  do: {do}"]


def _explained(facts: Facts) -> _Found:
    pod = facts.pod
    if pod is None:
        return _at_apply(facts)
    status = at(pod, "status")
    if facts.account is not None and not facts.account.requests_share and not facts.slices:
        return _Found("requests no share of a GPU", (), Do.NOTHING)
    if refused := _by_the_agent(pod, facts.events):
        text, do = refused
        return _Found(f"refused by the agent of node {_node(facts)}", [text], do)
    if status.get("phase") in ("Succeeded", "Failed"):
        why = [f"{status.get('reason')}: {status.get('message')}"] if status.get("reason") else []
        return _Found(f"has ended ({status['phase']})", why, Do.ENDED)
    return _running(facts, pod) if _node(facts) else _waiting(facts, pod)


# --- refused


def _at_apply(facts: Facts) -> _Found:
    """Explain a pod that was not created, by the Event of the workload that could not create it."""
    if facts.alike:
        lines = [f"pods of this name: {some_of(facts.alike, _GROUPS)}"]
        return _Found("is no pod", lines, Do.EXPLAIN)
    for event in facts.events:
        owner = str(at(event, "regarding").get("name", ""))
        if f"{facts.name}-".startswith(f"{owner}-") or owner.startswith(f"{facts.name}-"):
            text, do = remedies.of_denial(_note(event)) or (_note(event), Do.NAMED)
            return _Found(f"refused at its creation, of {owner}", [text], do)
    lines = ["no Event says why; `kubectl apply` prints the reason for which it refuses a pod"]
    return _Found("not found", lines, Do.MANIFEST)


def _by_the_agent(pod: Json, events: Sequence[Json]) -> tuple[str, Do] | None:
    """Return the agent's latest refusal of one of the pod's containers that is not running."""
    status = at(pod, "status")
    for container in container_statuses(pod):
        if "running" in at(container, "state") or container.get("ready") is True:
            continue
        for state in (at(container, "state"), at(container, "lastState")):
            for kind in ("waiting", "terminated"):
                if answer := remedies.of_answer(str(at(state, kind).get("message", ""))):
                    return answer
    if status.get("phase") == "Pending":
        return next(filter(None, (remedies.of_answer(_note(each)) for each in events)), None)
    return None


# --- waiting


def _waiting(facts: Facts, pod: Json) -> _Found:
    account, near = facts.account, facts.nearest
    # What follows is about pods that might be evicted for it, node by node.
    text = str(scheduling_condition(pod).get("message") or "")
    message = re.split(_PREEMPTION, text, maxsplit=1)[0]
    lines = [f"kube-scheduler: {message}"] if message else []
    if account is not None and account.error:
        return _Found("refused by the scheduler", [account.error], Do.POD)
    if gates := objects(at(pod, "spec"), "schedulingGates"):
        gate_names = ", ".join(str(gate.get("name")) for gate in gates)
        return _Found("waits for its scheduling gates", [gate_names], Do.GATES)
    if nominated := at(pod, "status").get("nominatedNodeName"):
        lines.append(f"node {nominated}: pods of lower priority are evicted for it")
        return _Found("waits for evicted pods to end", lines, Do.WAIT, str(nominated))
    lines += _notices(facts.events)
    if any(each.get("reason") == scheduler_events.POD_PROBLEM for each in facts.events):
        return _Found("waits, and cannot run as it is written", lines, Do.POD)
    if account is None:
        do = Do.CRITERIA if message and "gpuslice" not in message else Do.SCHEDULER
        return _Found("waits for a node", lines, Do.RIGHTS if facts.missing else do)
    if account.placed:
        (share, *_) = account.candidates[0].containers
        room = f"{size(share.memory_bytes)} of {share.uuid} are free for it"
        lines.append(f"nearest node: {account.node}: {room}")
        if not message:
            served = str(at(pod, "spec").get("schedulerName", ""))
            lines.insert(0, f"no scheduler has tried it yet: spec.schedulerName is {served}")
            return _Found("waits for a scheduler", lines, Do.SCHEDULER)
        return _Found("waits, although a GPU is free", lines, remedies.WAITING[Reason.FITS])
    if near is None:
        return _Found("waits for a node with GPUs", lines, Do.ADD_NODE)
    reported = facts.unready.get(near.node, "") if near.reason is Reason.AGENT_NOT_READY else ""
    lines.append(f"nearest node: {near.node}: {near.text}" + (f": {reported}" if reported else ""))
    for refusal in account.refused[:_GROUPS]:
        count = f"{len(refusal.nodes)} node" + "s" * (len(refusal.nodes) > 1)
        lines.append(f"{count}: {refusal.text}: {names_shown(refusal.nodes)}")
    return _Found("waits for a GPU", lines, remedies.WAITING[near.reason], near.node)


def _notices(events: Sequence[Json]) -> Sequence[str]:
    """Return the Events of gpuslice's components, without those that repeat kube-scheduler's."""
    ours = [each for each in events if each.get("reason") in remedies.EVENTS]
    return [f"Event {each['reason']}: {_note(each)}" for each in ours][:_GROUPS]


# --- running


def _running(facts: Facts, pod: Json) -> _Found:
    """Explain a bound pod: what it waits for on its node, or what makes it slow."""
    lines = [_grant(gpu, each, pod) for gpu, each in facts.slices]
    shown = [f"+ {len(lines) - _GROUPS} more"] if len(lines) > _GROUPS else []
    lines = [*lines[:_GROUPS], *shown, *_notices(facts.events)]
    stops = [text for reason, text in waiting_containers(pod) if reason != "PodInitializing"]
    if stopped := [f"container {text}" for text in stops[:1]]:
        return _Found(
            f"is bound to {_node(facts)}, and does not run", [*stopped, *lines], Do.DESCRIBE
        )
    ended, do_ended = _restarts(pod)
    lines = [*ended, *lines]
    runs = "runs on" if at(pod, "status").get("phase") == "Running" else "is bound to"
    headline = f"{runs} {_node(facts)}"
    reasons = [str(each.get("reason")) for each in facts.events]
    serious = remedies.EVENTS.keys() - {scheduler_events.POD_NOTICE}
    if reason := next((each for each in reasons if each in serious), ""):
        return _Found(f"{headline}, with a problem", lines, remedies.EVENTS[reason])
    if do_ended:
        return _Found(f"{headline}, and was restarted", lines, do_ended)
    sharing = {f"{each.namespace}/{each.pod}" for gpu, _ in facts.slices for each in gpu.slices}
    beside = sorted(sharing - {f"{facts.namespace}/{facts.name}"})
    lines.append(f"on the same GPU: {some_of(beside, _GROUPS) if beside else 'no pod'}")
    return _Found(headline, lines, _speed(facts, pod))


def _speed(facts: Facts, pod: Json) -> Do:
    """Return what to do about the speed of a running pod, by what its slices use."""
    uses = [(each.use, each) for _, each in facts.slices if each.use]
    if not uses:
        return Do.RIGHTS if facts.missing else Do.AGENT
    if max(use.throttled_ratio or 0 for use, _ in uses) <= _DELAYED:
        return Do.PROFILE
    if min(use.share_ratio or 0 for use, _ in uses) >= _FULL:
        return Do.FULL
    named = (_policy(pod, each.container) or Policy.FAIR for _, each in uses)
    return remedies.SLOW[min(named, key=lambda policy: (policy is Policy.FAIR, policy))]


def _restarts(pod: Json) -> tuple[Sequence[str], Do | None]:
    """Return a line for each container that was restarted, and what to do if one had failed."""
    lines, failed = [], False
    for each in objects(at(pod, "status"), "containerStatuses"):
        if count := each.get("restartCount"):
            last = at(at(each, "lastState"), "terminated")
            code = last.get("exitCode")
            lines.append(f"container {each.get('name')}: {count} restarts, last exit code {code}")
            failed |= bool(code)
    return lines, Do.PREVIOUS if failed else None


def _grant(gpu: Gpu, each: Slice, pod: Json) -> str:
    parts = [
        f"container {each.container or '(all)'}: {size(each.memory_bytes)} and"
        f" {each.core_percent or 100} % of GPU {gpu.minor} ({gpu.uuid})"
    ]
    if (use := each.use) and use.used_bytes is not None:
        parts.append(f"{size(int(use.used_bytes))} used")
    if use and use.refused:
        parts.append(f"{use.refused:.0f} allocations refused at the limit")
    if use and use.violations:
        parts.append(f"{use.violations:.0f} times over the limit")
    if use and use.share_ratio is not None:
        parts.append(f"{use.share_ratio:.0%} of the GPU's time")
    if use and use.throttled_ratio is not None:
        parts.append(f"launches wait {use.throttled_ratio:.0%} of the time")
    policy = _policy(pod, each.container)
    return ", ".join(parts) + (f"; compute policy {policy}" if policy else "")


def _policy(pod: Json, container: str) -> Policy | None:
    """Return the compute policy that the pod names for the container. None: the node's default."""
    annotations = texts(at(pod, "metadata"), "annotations")
    pods = annotations.get(names.ANNOTATION_COMPUTE, "")
    text = annotations.get(f"{names.ANNOTATION_COMPUTE_PREFIX}{container}", pods)
    return Policy(text) if text in [*Policy] else None


# --- Kubernetes' objects


def _node(facts: Facts) -> str:
    return str(at(facts.pod or NOTHING, "spec").get("nodeName") or "")


def _note(event: Json) -> str:
    return str(event.get("note") or "")


def _cut(text: str) -> str:
    plain = printable(text)
    return plain if len(plain) <= _MAX_CHARS else f"{plain[: _MAX_CHARS - 3]}..."


ALL_DIALECTS: Final = frozenset(each.name for each in dialects.DIALECTS)
"""A pod of a dialect that the scheduler does not serve is explained by kube-scheduler's message."""
