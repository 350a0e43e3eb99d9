"""Pods with ResourceClaims on a whole cluster, and what the node's agent has prepared."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gpuslice.contract import names
from lab import pages
from nri_plugin.claims.store import ClaimStore, plugin_dir
from tests.e2e.whole import Whole
from tests.support import until

Json = dict[str, Any]

GIB: Final = 1 << 30
SLICES: Final = "resourceslices.resource.k8s.io"
HOLD: Final = "cuda-probe hold >/tmp/held 2>&1 & until [ -s /tmp/held ]; do sleep 0.1; done"


def request(name: str, memory: str, core: int, **more: Any) -> Json:
    """Return a request of a share with this much of a GPU."""
    size = {"requests": {names.CAPACITY_MEMORY: memory, names.CAPACITY_CORE: str(core)}}
    return {
        "name": name,
        "exactly": {"deviceClassName": names.DEVICE_CLASS, "capacity": size, **more},
    }


def template(name: str, *requests: Json) -> Json:
    return _claim("ResourceClaimTemplate", name, {"spec": {"devices": {"requests": [*requests]}}})


def claim(name: str, *requests: Json) -> Json:
    return _claim("ResourceClaim", name, {"devices": {"requests": [*requests]}})


def _claim(kind: str, name: str, spec: Json) -> Json:
    version = "resource.k8s.io/v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def container(
    name: str, *requests: str, script: str = "sleep 1d", all_of: bool = False, **more: Any
) -> Json:
    """Return a container with these requests of the pod's claim, or with all of them."""
    used = [{"name": "gpu"}] if all_of else [{"name": "gpu", "request": each} for each in requests]
    return {
        "name": name,
        "image": "busybox",
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script],
        "resources": {"claims": used, "limits": {"cpu": "40m", "memory": "40Mi"}},
        **more,
    }


def pod(name: str, of: str, *containers: Json, named: bool = False, **spec: Any) -> Json:
    """Return a pod with a claim of the template `of`, or with the claim of that name. "": none."""
    key = "resourceClaimName" if named else "resourceClaimTemplateName"
    claims = {"resourceClaims": [{"name": "gpu", key: of}]} if of else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [*containers] or [container("main", all_of=bool(of))],
            "terminationGracePeriodSeconds": 0,
            **claims,
            **spec,
        },
    }


def create(whole: Whole, *objects: Json) -> None:
    whole.kubectl("create", "-f", "-", given="\n---\n".join(map(json.dumps, objects)))


def slice_devices(whole: Whole) -> Sequence[Json]:
    """Return the devices of the node's slice, none if there is no slice."""
    name = f"{whole.state['node']}-{names.DRA_DRIVER}"
    done = whole.try_kubectl("get", SLICES, name, "-o=json")
    return json.loads(done.stdout)["spec"]["devices"] if done.returncode == 0 else ()


def move(whole: Whole, front_end: str) -> None:
    """Set the node's label."""
    label = f"{names.LABEL_FRONT_END}={front_end}"
    whole.kubectl("label", "node", whole.state["node"], label, "--overwrite")


def serves_claims(whole: Whole) -> None:
    until(lambda: slice_devices(whole), "the node has a slice")


def records(whole: Whole) -> Sequence[Json]:
    """Return the records of claims that the agent has prepared."""
    store = ClaimStore(plugin_dir(whole.root / "var/lib/kubelet"), whole.root / "run/cdi")
    found = []
    for path in store.records.glob("*.json"):
        try:
            found.append(json.loads(path.read_text()))
        except OSError:  # it is unprepared now
            continue
    return found


def prepared_bytes(whole: Whole) -> Mapping[str, int]:
    """Return the bytes that prepared claims have of each device."""
    total: Counter[str] = Counter()
    for record in records(whole):
        for share in record["shares"]:
            total[share["device"]] += share["memory_bytes"]
    return total


def readiness(whole: Whole) -> str:
    return pages.get(whole.state["pages"]["gpuslice node agent"], "/readyz", 10.0)[1]


def lab(whole: Whole) -> Path:
    return Path(whole.state["directory"])
