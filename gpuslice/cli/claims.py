"""What `top` and `explain` read of ResourceClaims, and of the pods that name them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuslice.contract import names, quantity
from gpuslice.kube.fields import NOTHING, Json, allocated, at, objects


@dataclass(frozen=True, slots=True)
class Part:
    """What a claim has of a device."""

    node: str
    device: str
    memory_bytes: int
    core_percent: int


def key(raw: Json) -> tuple[str, str]:
    """Return the object's namespace and name."""
    metadata = at(raw, "metadata")
    return str(metadata.get("namespace", "")), str(metadata.get("name", ""))


def ours(claims: Iterable[Json]) -> Mapping[tuple[str, str], Json]:
    """Return the claims that have, or request, shares of our GPUs."""
    return {key(each): each for each in claims if parts(each) or names.DEVICE_CLASS in _asked(each)}


def parts(claim: Json) -> Sequence[Part]:
    """Return what the claim has of our GPUs. Nothing: it is not allocated."""
    found = []
    for each in allocated(claim, names.DRA_DRIVER):
        consumed = at(each, "consumedCapacity")
        memory = quantity.parse(consumed.get(names.CAPACITY_MEMORY))
        core = quantity.parse(consumed.get(names.CAPACITY_CORE))
        if isinstance(memory, quantity.Value) and isinstance(core, quantity.Value):
            where = str(each.get("pool", "")), str(each.get("device", ""))
            found.append(Part(*where, memory.amount, core.amount))
    return found


def pods(claim: Json) -> Sequence[str]:
    """Return the names of the pods for which the claim is reserved."""
    reserved = objects(at(claim, "status"), "reservedFor")
    return [str(each.get("name")) for each in reserved if each.get("resource") == "pods"]


def named(pod: Json) -> Mapping[str, str]:
    """Return the ResourceClaims of the pod by its names for them. "": not created yet."""
    status = at(pod, "status")
    made = {each.get("name"): each for each in objects(status, "resourceClaimStatuses")}
    found = {}
    for each in objects(at(pod, "spec"), "resourceClaims"):
        label = each.get("name")
        claim = each.get("resourceClaimName") or made.get(label, NOTHING).get("resourceClaimName")
        if claim or label not in made:  # else it needs none
            found[str(label)] = str(claim or "")
    if whole := at(status, "extendedResourceClaimStatus").get("resourceClaimName"):
        found[names.RESOURCE_NVIDIA_GPU] = str(whole)
    return found


def container(pod: Json, claim: str) -> str:
    """Return the only container of the pod that uses the claim; "": several do."""
    spec, labels = at(pod, "spec"), {label for label, of in named(pod).items() if of == claim}
    users = [
        str(each.get("name"))
        for each in (*objects(spec, "initContainers"), *objects(spec, "containers"))
        if labels & {use.get("name") for use in objects(at(each, "resources"), "claims")}
    ]
    return users[0] if len(users) == 1 else ""


def _asked(claim: Json) -> Iterator[object]:
    """Yield the classes of the devices that the claim requests."""
    for request in objects(at(at(claim, "spec"), "devices"), "requests"):
        for each in (at(request, "exactly"), *objects(request, "firstAvailable")):
            yield each.get("deviceClassName")
