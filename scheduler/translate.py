"""Between Kubernetes' JSON and the core: the only module that knows field paths.

Pure. Requests are refused where anything in them is not as it must be (RequestError, a text for the
pod's author). What others wrote of nodes, cards and bound pods is read tolerantly: what cannot be
read is left out and told, and what may be held stays held.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from contract import allocation, grants, names, quantity
from scheduler import dialects
from scheduler.core.fleet import MAX_BYTES, MIN_BYTES, Card
from scheduler.core.request import WHOLE_PERCENT, Ask, Phase, Policy, Request
from scheduler.dialects import Container, RequestError
from scheduler.facts import (
    DeviceFacts,
    Held,
    HeldCard,
    LeaseFacts,
    NodeFacts,
    PodFacts,
    Unreadable,
)
from scheduler.hints import read_hints

Json = Mapping[str, Any]

_FOREIGN: Final = frozenset((*names.RESOURCES_WHOLE, *names.RESOURCES_KOORDINATOR_ONLY))
UNBOUND: Final = 0
_FINISHED: Final = frozenset({"Succeeded", "Failed"})
_NOTHING: Final[Json] = {}

# --- what a pod asks for -------------------------------------------------------------------------


def request(pod: Json) -> Request | None:
    """What the pod asks for; None: no share, so that it may go anywhere. Raises RequestError."""
    for name, _, _, raw in _lives(pod):
        for kind in ("limits", "requests"):
            for key, value in _at(_at(raw, "resources"), kind).items():
                if wrong := _wrong(key, value):
                    raise RequestError(f"container {name}: {key}: {value}{wrong}")
    return _asked(pod)


def _asked(pod: Json) -> Request | None:
    """As `request`, under whichever name: who is bound has been understood by somebody."""
    metadata = _at(pod, "metadata")
    annotations = _texts(metadata, "annotations")
    containers = tuple(_container(*each) for each in _lives(pod))
    asks = dialects.read(annotations, containers)
    isolation = _wants_isolation(_texts(metadata, "labels"))
    if asks or isolation:
        _refuse_foreign(pod, containers)
    if not asks:
        if isolation:
            raise RequestError(
                f"label {names.LABEL_ISOLATION_PROVIDER}: {names.ISOLATION_PROVIDER}, but no"
                f" container asks for a share of a card ({names.RESOURCE_MEMORY_RATIO}, or another"
                f" of koordinator.sh's)"
            )
        return None
    named = [ask.container for ask in asks]
    if len(set(named)) < len(named):
        raise RequestError(f"containers {', '.join(named)}: a name is there twice")
    selector, scope = read_hints(annotations, asks)
    return Request(asks, _policy(annotations), selector, scope, isolation)


def _lives(pod: Json) -> Iterator[tuple[str, Phase, int, Json]]:
    """Each container's name, when it lives, and itself."""
    spec = _at(pod, "spec")
    for order, raw in enumerate(_list(spec, "initContainers")):
        sidecar = raw.get("restartPolicy") == "Always"
        yield str(raw.get("name", "")), Phase.SIDECAR if sidecar else Phase.INIT, order, raw
    for order, raw in enumerate(_list(spec, "containers")):
        yield str(raw.get("name", "")), Phase.MAIN, order, raw


def _container(name: str, phase: Phase, order: int, raw: Json) -> Container:
    """A request outranks a limit of the same name; the API server wants both to be equal."""
    resources = _at(raw, "resources")
    asked: dict[str, object] = {}
    for kind in ("limits", "requests"):
        written = _at(resources, kind)
        for key, value in written.items():
            canonical = names.DEPRECATED_RESOURCES.get(key, key)
            if canonical != key and canonical in written:
                raise RequestError(
                    f"container {name}: {kind}: {key} and {canonical} are one; allowed is one"
                )
            asked[canonical] = value
    return Container(name, phase, order, asked)


def _wrong(key: str, value: object) -> str:
    """With a resource of cards, "" for nothing. Of a fraction the API server says the same; the pod
    may be one that it has not seen."""
    if key not in dialects.RESOURCES:
        return dialects.misnamed(key)
    read = quantity.parse(value)
    rounded = isinstance(read, quantity.Value) and read.rounded
    return "; allowed are whole numbers" if rounded else ""


def _refuse_foreign(pod: Json, containers: Sequence[Container]) -> None:
    """What somebody else allocates: bound by us the pod would run without it."""
    overhead = _at(_at(pod, "spec"), "overhead")
    for key, value in overhead.items():
        if key in dialects.RESOURCES:
            raise RequestError(f"spec.overhead: {key}: {value}; allowed is in containers alone")
    for container in containers:
        for key, value in container.resources.items():
            if key not in _FOREIGN or quantity.parse(value) == quantity.Value(0):
                continue
            if key in names.RESOURCES_WHOLE:
                raise RequestError(
                    f"container {container.name}: {key}: {value} is not ours to give, but its"
                    f" device plugin's; a pod asks either for it or for shares of"
                    f" {names.RESOURCE_MEMORY_RATIO} and the like, where"
                    f" {names.RESOURCE_GPU}: 100 is a whole card"
                )
            raise RequestError(
                f"container {container.name}: {key}: {value}; only Koordinator's own scheduler"
                f" gives it, allowed are {', '.join(sorted(dialects.RESOURCES))}"
            )


def _wants_isolation(labels: Mapping[str, str]) -> bool:
    value = labels.get(names.LABEL_ISOLATION_PROVIDER)
    if value is not None and value.lower() != names.ISOLATION_PROVIDER:
        raise RequestError(
            f"label {names.LABEL_ISOLATION_PROVIDER}: {value!r}; allowed is"
            f" {names.ISOLATION_PROVIDER}, in any case"
        )
    return value is not None


def _policy(annotations: Mapping[str, str]) -> Policy | None:
    text = annotations.get(names.ANNOTATION_POLICY)
    if text is None:
        return None
    try:
        return Policy(text)
    except ValueError:
        allowed = ", ".join(policy.value for policy in Policy)
        raise RequestError(
            f"annotation {names.ANNOTATION_POLICY}: {text!r}; allowed are {allowed}"
        ) from None


# --- what a pod holds ----------------------------------------------------------------------------


def pod(raw: Json) -> PodFacts:
    """Never raises for what its author or a scheduler wrote."""
    metadata, spec = _at(raw, "metadata"), _at(raw, "spec")
    node = str(spec.get("nodeName") or "")
    finished = str(_at(raw, "status").get("phase")) in _FINISHED
    held, problem = _held(raw) if node and not finished else ((), "")
    return PodFacts(
        uid=str(metadata.get("uid", "")),
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        node=node,
        finished=finished,
        held=held,
        problem=problem,
    )


def uid(raw: Json) -> str:
    return str(_at(raw, "metadata").get("uid", ""))


def mark(raw: Json) -> int:
    """Another one where anything has changed that `pod` reads of a pod: not of all that may be
    written, since a container's shares stay as they are while the pod is there. UNBOUND for one
    that is on no node."""
    node = _at(raw, "spec").get("nodeName")
    if not node:
        return UNBOUND
    metadata = _at(raw, "metadata")
    written = (frozenset(_texts(metadata, key).items()) for key in ("labels", "annotations"))
    return hash((node, _at(raw, "status").get("phase") in _FINISHED, *written)) or 1


def _held(raw: Json) -> tuple[Held, str]:
    """Ours says which container has what; Koordinator's says what the pod has together."""
    annotations = _texts(_at(raw, "metadata"), "annotations")
    allocated, problem = _read_allocation(annotations.get(names.ANNOTATION_DEVICE_ALLOCATED))
    text = annotations.get(names.ANNOTATION_GRANTS)
    if text is not None:
        try:
            granted = grants.decode(text)
        except grants.GrantsError as error:
            problem = problem or f"annotation {names.ANNOTATION_GRANTS}: {error}"
        else:
            return _held_by_containers(raw, granted, allocated or ()), problem
    if allocated is not None:
        try:
            return tuple(_held_card(entry) for entry in allocated), problem
        except allocation.AllocationError as error:
            problem = f"annotation {names.ANNOTATION_DEVICE_ALLOCATED}: {error}"
    try:
        asked = _asked(raw)
    except RequestError as error:
        asked, refused = None, str(error)
    else:
        refused = ""
    if problem:
        # Who asks for nothing was granted nothing, whatever is written on the pod.
        unknown = asked is not None or refused
        return (Unreadable(asked) if unknown else ()), problem
    return (), "bound without an allocation: it has no card" if asked or refused else ""


def _read_allocation(text: str | None) -> tuple[Sequence[allocation.DeviceEntry] | None, str]:
    """The GPUs of the allocation; None where there is none, or none that can be read."""
    if text is None:
        return None, ""
    try:
        return allocation.decode(text).gpus or None, ""
    except allocation.AllocationError as error:
        return None, f"annotation {names.ANNOTATION_DEVICE_ALLOCATED}: {error}"


def _held_card(entry: allocation.DeviceEntry) -> HeldCard:
    memory = entry.resources.get(names.RESOURCE_MEMORY)
    ratio = entry.resources.get(names.RESOURCE_MEMORY_RATIO)
    if memory is None and ratio is None:
        raise allocation.AllocationError(
            f"minor {entry.minor}: {names.RESOURCE_MEMORY} is not there, nor its ratio"
        )
    core = entry.resources.get(names.RESOURCE_CORE)
    return HeldCard(
        entry.id,
        entry.minor,
        None if memory is None else min(memory, MAX_BYTES),
        None if core is None else min(core, WHOLE_PERCENT),
        min(ratio or 0, WHOLE_PERCENT),
    )


def _held_by_containers(
    raw: Json, granted: grants.Grants, allocated: Sequence[allocation.DeviceEntry]
) -> Sequence[HeldCard]:
    """By card, the most that containers have of it which live at once. Where the allocation leaves
    core out, the grants' core is no more than a limit, and nothing of it is held."""
    coreless = {e.id for e in allocated if names.RESOURCE_CORE not in e.resources}
    shares_of: dict[tuple[str, int], list[tuple[str, int, int]]] = {}
    for name, cards in granted.items():
        for card in cards:
            share = (name, min(card.memory_bytes, MAX_BYTES), card.core_percent)
            shares_of.setdefault((card.id, card.minor), []).append(share)
    held = []
    for (uuid, minor), shares in shares_of.items():
        _, size, core = shares[0]
        if len(shares) > 1:
            size, core = _peak(raw, shares)
        held.append(HeldCard(uuid, minor, size, None if uuid in coreless else core))
    return tuple(held)


def _peak(raw: Json, shares: Sequence[tuple[str, int, int]]) -> tuple[int, int]:
    """Bytes and core of one card; shares: container, its bytes, its core."""
    phases = {name: (phase, order) for name, phase, order, _ in _lives(raw)}
    asks = []
    for name, size, core in shares:
        phase, order = phases.get(name, (Phase.MAIN, 0))
        asks.append(Ask(name, phase, order, 1, core, size))
    peak_bytes, peak_core = Request(asks).peak_of(MAX_BYTES)
    assert peak_core is not None  # each share says its core
    return peak_bytes, peak_core


# --- nodes, their inventory and their agents -----------------------------------------------------


def node(raw: Json) -> NodeFacts:
    metadata = _at(raw, "metadata")
    annotations = _texts(metadata, "annotations")
    provider = _texts(metadata, "labels").get(names.LABEL_ISOLATION_PROVIDER, "")
    return NodeFacts(
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        isolates=provider.lower() == names.ISOLATION_PROVIDER,
        cordoned=_uuids(annotations, names.ANNOTATION_CORDONED_CARDS),
        excluded=_uuids(annotations, names.ANNOTATION_EXCLUDED_CARDS),
    )


def _uuids(annotations: Mapping[str, str], key: str) -> frozenset[str]:
    listed = (each.strip() for each in annotations.get(key, "").split(","))
    return frozenset(each for each in listed if each)


def device(raw: Json) -> DeviceFacts:
    """The inventory: what can be read of it."""
    metadata = _at(raw, "metadata")
    owners = [o for o in _list(metadata, "ownerReferences") if o.get("kind") == "Node"]
    listed = _at(raw, "spec").get("devices")
    readable = listed is None or isinstance(listed, list)
    cards: dict[str, Card] = {}
    problems: list[str] = [] if readable else [f"Device: spec.devices: {listed!r}, expected a list"]
    for index, entry in enumerate(_list(_at(raw, "spec"), "devices")):
        if entry.get("type") != names.DEVICE_TYPE_GPU:
            continue
        card = _card(entry)
        if isinstance(card, str):
            problems.append(f"Device: spec.devices[{index}]: {card}; the card is left out")
        elif card.uuid in cards:
            problems.append(f"Device: spec.devices[{index}].id: {card.uuid} is there twice")
        else:
            cards[card.uuid] = card
    ordered = sorted(cards.values(), key=lambda card: (card.minor, card.uuid))
    if len(ordered) > names.MAX_CARDS:
        problems.append(
            f"Device: {len(ordered)} cards; those behind the first {names.MAX_CARDS} are left out"
        )
    return DeviceFacts(
        name=str(metadata.get("name", "")),
        node_uid=str(owners[0].get("uid", "")) if owners else "",
        cards=tuple(ordered[: names.MAX_CARDS]),
        problems=tuple(problems),
        readable=readable,
    )


def _card(entry: Json) -> Card | str:
    """The card, or what is wrong with it. One of which nobody says that it is healthy, is not."""
    uuid, minor = entry.get("id"), entry.get("minor")
    if not isinstance(uuid, str) or not uuid:
        return f"id: {uuid!r}, expected a card's UUID"
    if not isinstance(minor, int) or isinstance(minor, bool) or not 0 <= minor < 2**31:
        return f"minor: {minor!r}, expected a whole number from 0"
    resources = {
        names.DEPRECATED_RESOURCES.get(key, key): value
        for key, value in _at(entry, "resources").items()
    }
    memory = quantity.parse(resources.get(names.RESOURCE_MEMORY))
    if not isinstance(memory, quantity.Value) or not MIN_BYTES <= memory.amount <= MAX_BYTES:
        return f"resources.{names.RESOURCE_MEMORY}: {memory}, expected {MIN_BYTES} to {MAX_BYTES}"
    topology, labels = _at(entry, "topology"), _texts(entry, "labels")
    numa, root = topology.get("nodeID"), topology.get("pcieID")
    return Card(
        uuid,
        minor,
        memory.amount,
        usable=entry.get("health") is True,
        numa=numa if isinstance(numa, int) and numa >= 0 else None,
        root=root if isinstance(root, str) and root else None,
        link=labels.get(names.LABEL_CARD_LINK),
        labels=labels,
    )


def lease(raw: Json) -> LeaseFacts | None:
    """The sign of life of a node's agent; None: a Lease of somebody else."""
    metadata = _at(raw, "metadata")
    name = str(metadata.get("name", ""))
    ours = metadata.get("namespace") == names.NAMESPACE
    if not ours or not name.startswith(names.LEASE_AGENT_PREFIX):
        return None
    ready = _texts(metadata, "annotations").get(names.ANNOTATION_READY, "has not said so")
    beat = str(_at(raw, "spec").get("renewTime") or "")
    return LeaseFacts(
        node=name.removeprefix(names.LEASE_AGENT_PREFIX),
        beat=beat,
        not_ready="" if ready == "true" else ready or "no reason given",
        renewed_s=_epoch_s(beat),
    )


def _epoch_s(text: str) -> float | None:
    """Of a MicroTime, which is in UTC."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at.timestamp() if at.tzinfo is not None else None


# --- JSON ----------------------------------------------------------------------------------------


def _at(raw: Json, key: str) -> Json:
    """The object there; an empty one where there is none."""
    found = raw.get(key)
    return found if isinstance(found, dict) else _NOTHING


def _list(raw: Json, key: str) -> Sequence[Json]:
    """The objects in the list there."""
    found = raw.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _texts(raw: Json, key: str) -> Mapping[str, str]:
    return {name: text for name, text in _at(raw, key).items() if isinstance(text, str)}
