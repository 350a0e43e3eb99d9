"""Explains a pod from what the API server has: why it waits, was refused or is slow. Pure.

An explanation has at most MAX_LINES lines, and the last one says what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuslice.cli import claim_states, cluster, remedies
from gpuslice.cli.cluster import Gpu, Slice
from gpuslice.cli.queue_state import Held, Place
from gpuslice.cli.remedies import Do
from gpuslice.cli.use import SliceUse
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
_NO_ROOM: Final = "cannot allocate all claims"
"""kube-scheduler's reason for a node whose GPUs have no room for a claim."""
_GROUPS: Final = 3
"""The most lines of nodes, of containers and of Events."""
_EVENTS_KEPT: Final = "the API server keeps Events for an hour by default"


@dataclass(frozen=True, slots=True)
class Facts:
    """What was read. pod: None if there is none of this name. events: of the pod, or of the
    namespace's workloads if there is no pod, the latest first. account, nearest: the placement that
    the scheduler would choose now; None if it cannot be computed. gpus: of the pod's node. unready:
    why agents are not ready, by node. place: in a queue. claims: the state of each ResourceClaim of
    the pod. missing: rights that the user lacks."""

    namespace: str
    name: str
    pod: Json | None
    events: Sequence[Json] = ()
    account: Account | None = None
    nearest: Nearest | None = None
    gpus: Sequence[Gpu] = ()
    created: Mapping[str, str] = field(default_factory=dict)
    """If there is no pod of this name: when those were created whose names begin with it."""
    unready: Mapping[str, str] = field(default_factory=dict)
    place: Place = field(default_factory=Place)
    claims: Mapping[str, str] = field(default_factory=dict)
    kind: str = "pod"
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
    node, extra = found.node or _node(facts) or "NODE", []
    if facts.missing:
        rights = "; ".join(facts.missing)
        extra = [f"missing rights (ClusterRole {names.VIEWER}), so this is incomplete: {rights}"]
    elif not facts.events and facts.pod is not None:
        extra = [f"no Events: computed from the current state ({_EVENTS_KEPT})"]
    do = found.do.format(pod=facts.name, namespace=facts.namespace, node=node)
    lines = [f"{facts.kind} {facts.namespace}/{facts.name}: {found.headline}", *found.lines]
    lines = lines[: MAX_LINES - 1 - len(extra)] + extra
    return [_cut(lines[0]), *(f"  {_cut(each)}" for each in lines[1:]), f"  do: {do}"]


def _explained(facts: Facts) -> _Found:
    pod = facts.pod
    if pod is None:
        return _at_apply(facts)
    status = at(pod, "status")
    has_share = bool(facts.slices or facts.claims)
    asks = has_share or facts.account is None or facts.account.requests_share
    if not asks and not facts.place.is_gated:
        return _Found("requests no share of a GPU", facts.place.lines, Do.NOTHING)
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
    lines = [f"pods of this name: {some_of(sorted(facts.created), _GROUPS)}"] * bool(facts.created)
    for event in facts.events:
        owner = str(at(event, "regarding").get("name", ""))
        if f"{facts.name}-".startswith(f"{owner}-") or owner.startswith(f"{facts.name}-"):
            created = [of for pod, of in facts.created.items() if pod.startswith(f"{owner}-")]
            if created and time_of(event) <= max(created):
                continue  # the owner's pods could be created since
            text, do = remedies.of_denial(_note(event)) or (_note(event), Do.NAMED)
            return _Found(f"refused at its creation, of {owner}", [text, *lines], do)
    if lines:
        return _Found("is no pod", lines, Do.EXPLAIN)
    lines = ["no Event says why; `kubectl apply` prints the reason for which it refuses a pod"]
    return _Found("not found", lines, Do.MANIFEST)


def _by_the_agent(pod: Json, events: Sequence[Json]) -> tuple[str, Do] | None:
    """Return the agent's latest refusal of one of the pod's containers that is not running."""
    status = at(pod, "status")
    messages = [
        str(at(at(container, state), kind).get("message", ""))
        for container in cluster.container_statuses(pod)
        if "running" not in at(container, "state") and container.get("ready") is not True
        for state in ("state", "lastState")
        for kind in ("waiting", "terminated")
    ]
    if status.get("phase") == "Pending":
        messages += map(_note, events)
    return next(filter(None, map(remedies.of_answer, messages)), None)


# --- waiting


def _waiting(facts: Facts, pod: Json) -> _Found:
    account, near, message = facts.account, facts.nearest, cluster.scheduler_message(pod)
    lines = [f"kube-scheduler: {message}"] if message else []
    if account is not None and account.error:
        return _Found("refused by the scheduler", [account.error], Do.POD)
    held, queue_lines = facts.place
    if gates := objects(at(pod, "spec"), "schedulingGates"):
        if held and facts.place.is_gated:
            return _Found(held, queue_lines, remedies.HELD[held])
        gate_names = ", ".join(str(gate.get("name")) for gate in gates)
        lines = [gate_names, *_notices(facts.events)]
        return _Found("waits for its scheduling gates", lines, Do.GATES)
    lines += queue_lines
    if nominated := at(pod, "status").get("nominatedNodeName"):
        lines.append(f"node {nominated}: pods of lower priority are evicted for it")
        return _Found("waits for evicted pods to end", lines, Do.WAIT, str(nominated))
    lines += _notices(facts.events)
    if any(each.get("reason") == scheduler_events.POD_PROBLEM for each in facts.events):
        return _Found("waits, and cannot run as it is written", lines, Do.POD)
    if facts.claims:
        return _claiming(facts, pod, [*_claims(facts), *lines])
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
    do = remedies.WAITING[near.reason]
    if held is Held.ADMITTED and do is Do.CAPACITY:
        return _Found(held, lines, remedies.HELD[held], near.node)
    return _Found("waits for a GPU", lines, do, near.node)


def _claiming(facts: Facts, pod: Json, lines: Sequence[str]) -> _Found:
    """Explain a pod without a node that has ResourceClaims."""
    message = cluster.scheduler_message(pod)
    if claim_states.MISSING in facts.claims.values():
        made_by_us = names.LABEL_CLAIM_TEMPLATE in at(at(pod, "metadata"), "labels")
        do = Do.TEMPLATES if made_by_us else Do.DESCRIBE
        return _Found("waits for its ResourceClaims", lines, do)
    if _NO_ROOM in message:
        unready = [f"node {node}: {reason}" for node, reason in facts.unready.items()]
        return _Found("waits for a GPU", [*lines, *unready[:_GROUPS]], Do.CLAIM)
    do = Do.CRITERIA if message else Do.DESCRIBE
    return _Found("waits for a node", lines, Do.RIGHTS if facts.missing else do)


def _claims(facts: Facts) -> Sequence[str]:
    return [f"{claim} {state}" for claim, state in facts.claims.items()]


def _notices(events: Sequence[Json]) -> Sequence[str]:
    """Return the Events of gpuslice's components, without those that repeat kube-scheduler's."""
    ours = [each for each in events if each.get("reason") in remedies.EVENTS]
    return [f"Event {each['reason']}: {_note(each)}" for each in ours][:_GROUPS]


# --- running


def _running(facts: Facts, pod: Json) -> _Found:
    """Explain a bound pod: what it waits for on its node, or what makes it slow."""
    grants = [_grant(gpu, each, pod) for gpu, each in facts.slices]
    if len(grants) > _GROUPS:
        grants[_GROUPS:] = [f"+ {len(grants) - _GROUPS} more"]
    restarts, failed = _restarts(pod)
    lines = [*restarts, *(grants or _claims(facts)), *_notices(facts.events)]
    for reason, text in cluster.waiting_containers(pod):
        if reason != "PodInitializing":
            headline = f"is bound to {_node(facts)}, and does not run"
            return _Found(headline, [f"container {text}", *lines], Do.DESCRIBE)
    lines += facts.place.lines
    runs = "runs on" if at(pod, "status").get("phase") == "Running" else "is bound to"
    headline = f"{runs} {_node(facts)}"
    for reason in (str(each.get("reason")) for each in facts.events):
        if reason in remedies.EVENTS and reason != scheduler_events.POD_NOTICE:
            return _Found(f"{headline}, with a problem", lines, remedies.EVENTS[reason])
    if failed:
        return _Found(f"{headline}, and was restarted", lines, Do.PREVIOUS)
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


def _restarts(pod: Json) -> tuple[Sequence[str], bool]:
    """Return a line for each container that was restarted, and whether one had failed."""
    lines, failed = [], False
    for each in objects(at(pod, "status"), "containerStatuses"):
        if count := each.get("restartCount"):
            code = at(at(each, "lastState"), "terminated").get("exitCode")
            lines.append(f"container {each.get('name')}: {count} restarts, last exit code {code}")
            failed |= bool(code)
    return lines, failed


def _grant(gpu: Gpu, each: Slice, pod: Json) -> str:
    use, policy = each.use or SliceUse(), _policy(pod, each.container)
    holder = f"claim {each.claim}" if each.claim else f"container {each.container or '(all)'}"
    text = (
        f"{holder}: {size(each.memory_bytes)} and"
        f" {each.core_percent or 100} % of GPU {gpu.minor} ({gpu.uuid})"
    )
    if use.used_bytes is not None:
        text += f", {size(int(use.used_bytes))} used"
    if use.refused:
        text += f", {use.refused:.0f} allocations refused at the limit"
    if use.violations:
        text += f", {use.violations:.0f} times over the limit"
    if use.share_ratio is not None:
        text += f", {use.share_ratio:.0%} of the GPU's time"
    if use.throttled_ratio is not None:
        text += f", launches wait {use.throttled_ratio:.0%} of the time"
    return text + (f"; compute policy {policy}" if policy else "")


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


def time_of(event: Json) -> str:
    """Return when an Event was last observed."""
    series, seen = at(event, "series"), event.get("deprecatedLastTimestamp")
    return str(series.get("lastObservedTime") or seen or event.get("eventTime") or "")


def _cut(text: str) -> str:
    plain = printable(text)
    return plain if len(plain) <= _MAX_CHARS else f"{plain[: _MAX_CHARS - 3]}..."


ALL_DIALECTS: Final = frozenset(each.name for each in dialects.DIALECTS)
"""A pod of a dialect that the scheduler does not serve is explained by kube-scheduler's message."""
