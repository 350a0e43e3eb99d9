"""The ResourceClaimTemplate of a share, by its name. Pure.

An admission policy (admission/claims.yaml of the chart) writes the name into a pod: amounts of each
GPU, and the number of GPUs. A percentage of memory becomes one alternative for each size of GPU in
the cluster, because a claim requests bytes. A share by bytes has no alternatives.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from gpuslice.contract import names, quantity
from gpuslice.kube.fields import Json, at, objects

LABELS: Final = {names.LABEL_PART_OF: names.PART_OF, names.LABEL_NAME: names.CLAIM_TEMPLATES}
MAX_SIZES: Final = 8
"""The most alternatives of a request (FirstAvailableDeviceRequestMaxSize of Kubernetes)."""
_NAME: Final = re.compile("gpuslice-c(100|[0-9]{1,2})-([rm])([0-9]{1,9})(?:-g([0-9]{1,2}))?")
_STEP: Final = names.CAPACITY_MEMORY_STEP


def sizes(slices: Iterable[Json]) -> Sequence[int]:
    """Return the most frequent sizes of our GPUs in steps of memory, ascending."""
    devices = (device for each in slices for device in objects(at(each, "spec"), "devices"))
    amounts = (at(at(each, "capacity"), names.CAPACITY_MEMORY).get("value") for each in devices)
    parsed = (quantity.parse(amount) for amount in amounts)
    found = Counter(each.amount // _STEP for each in parsed if isinstance(each, quantity.Value))
    return sorted(size for size, _ in found.most_common(MAX_SIZES))


def template(name: str, of_sizes: Sequence[int]) -> dict[str, Any] | None:
    """Return the template without its namespace; None if the name is not one of a share, or the
    cluster has no GPU."""
    matched = _NAME.fullmatch(name)
    if matched is None or not of_sizes:
        return None
    core, unit, memory, gpus = matched[1], matched[2], int(matched[3]), int(matched[4] or 1)

    def request(steps: int) -> dict[str, Any]:
        amount = quantity.format_binary(max(1, steps) * _STEP)
        wanted = {names.CAPACITY_MEMORY: amount, names.CAPACITY_CORE: core}
        return {
            "deviceClassName": names.DEVICE_CLASS,
            "allocationMode": "ExactCount",
            "count": gpus,
            "capacity": {"requests": wanted},
        }

    share: dict[str, Any] = {"exactly": request(memory)}
    if unit == "r":
        alternatives = (
            {"name": f"m{size}", **request(quantity.share_of(size, memory)), **_of_size(size)}
            for size in of_sizes
        )
        share = {"firstAvailable": [*alternatives]}
    devices: dict[str, Any] = {"requests": [{"name": names.DEVICE_TYPE_GPU, **share}]}
    if gpus > 1:
        devices["constraints"] = [
            {"distinctAttribute": f"{names.DRA_DRIVER}/{names.ATTRIBUTE_UUID}"}
        ]
    return {
        "apiVersion": names.DRA_API_VERSION,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "labels": LABELS},
        "spec": {"spec": {"devices": devices}},
    }


def lacks_size(there: Json, wanted: Json) -> bool:
    """Return whether the stored template has no alternative for a size of GPU. A size that has gone
    is no reason to replace the template: the kubelet's restart removes slices for a moment."""
    return not _alternatives(wanted) <= _alternatives(there)


def _alternatives(raw: Json) -> set[str]:
    devices = at(at(at(raw, "spec"), "spec"), "devices")
    return {
        str(each.get("name"))
        for request in objects(devices, "requests")
        for each in objects(request, "firstAvailable")
    }


def _of_size(size: int) -> Json:
    memory = f"device.capacity['{names.DRA_DRIVER}'].{names.CAPACITY_MEMORY}"
    same = f"{memory}.compareTo(quantity('{size}Mi')) == 0"
    return {"selectors": [{"cel": {"expression": same}}]}
