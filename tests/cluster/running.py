"""gpuslice's scheduler, kube-scheduler and the extender, running beside a control plane.

It runs as one replica, as several replicas of a Deployment, or as a second installation that was
made by mistake.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any, Self

from gpuslice.contract import names
from lab import pages
from lab.cluster.controlplane import ControlPlane
from lab.cluster.installation import Installation
from lab.cluster.manifests import NAMES, configuration, named
from scheduler.service import Settings
from tests.requests.pods import Json
from tests.support import until


class Pods:
    """Pods of one test in the namespace `default`. They are deleted at the test's end."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._names: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        now = ("--force", "--grace-period=0", "--ignore-not-found")
        self._plane.kubectl("delete", "pod", *now, *self._names)

    def add(self, made: Json) -> str:
        self._plane.kubectl("create", "-f", "-", given=json.dumps(made))
        self._names.append(str(made["metadata"]["name"]))
        return self._names[-1]

    def delete(self, name: str, *options: str) -> None:
        self._plane.kubectl("delete", "pod", name, *options)

    def live(self) -> set[str]:
        metadata = (each["metadata"] for each in self._read("pods")["items"])
        return {each["name"] for each in metadata if "deletionTimestamp" not in each}

    def get(self, name: str) -> Json:
        found: Json = self._read("pod", name)
        return found

    def is_bound(self, name: str) -> bool:
        return bool(self.get(name)["spec"].get("nodeName"))

    def bound(self, name: str) -> Json:
        until(lambda: self.is_bound(name), f"{name} is bound")
        return self.get(name)

    def events(self, name: str) -> list[tuple[str, str]]:
        return [
            (each["reason"], each["message"])
            for each in self._read("events")["items"]
            if each["involvedObject"].get("name") == name
        ]

    def has_event(self, name: str, part: str) -> bool:
        return any(part in note for _, note in self.events(name))

    def _read(self, *what: str) -> Any:
        return json.loads(self._plane.kubectl("get", *what, "-o=json"))


def running(
    plane: ControlPlane,
    name: str = "gpuslice",
    served: Sequence[str] = NAMES,
    lease_s: int = 15,
    hostname: str = "",
    elects: bool = True,
    module: str = "scheduler",
) -> Installation:
    """Run an installation during the block. hostname: the pod's host name. elects: whether
    kube-scheduler elects a leader; a second installation does not, because the manifests' rights
    allow only one Lease. lease_s: the Lease's duration. module: the extender's Python module."""
    written = configuration(served, lease_s)
    if not elects:
        written["leaderElection"] = {"leaderElect": False}
    return Installation(plane, written, name, module, hostname=hostname)


def replica(plane: ControlPlane, name: str, elects: bool = True) -> Installation:
    """Run a pod of the Deployment with that name. The replicas elect one kube-scheduler."""
    return running(plane, name, (names.SCHEDULER_NAME,), 4, name, elects)


def leader(first: Installation, second: Installation) -> tuple[Installation, Installation]:
    """Wait until one of the replicas binds. Return that replica, then the other."""
    until(lambda: first.binds or second.binds, "one of them binds")
    return (first, second) if first.binds else (second, first)


def keeps(replica: Installation, container: str) -> bool:
    """Return whether the kubelet would let this container of the Deployment run. Probe the
    replica, and again at once if it fails. Return False if it fails `failureThreshold` times."""
    return any(probed(replica, container) for _ in range(_probe(container)["failureThreshold"]))


def probed(replica: Installation, container: str) -> bool:
    """Send the chart's liveness probe of the container to the replica. Return whether it passes."""
    probe = _probe(container)
    asked = {"host": "127.0.0.1", "scheme": "HTTP", **probe["httpGet"]}
    served = Settings().http
    assert served is not None and asked["scheme"] == "HTTP"
    port = {served[1]: replica.pages[1]}[probe["ports"].get(asked["port"], asked["port"])]
    return _answers(asked["host"], port, asked["path"], probe.get("timeoutSeconds", 1))


def _probe(container: str) -> Json:
    """Return the container's liveness probe, with its ports' numbers by name."""
    pod = named("Deployment", names.SCHEDULER_NAME)["spec"]["template"]["spec"]
    (only,) = (each for each in pod["containers"] if each["name"] == container)
    return {
        **only["livenessProbe"],
        "ports": {p["name"]: p["containerPort"] for p in only["ports"]},
    }


def _answers(host: str, port: int, path: str, timeout_s: float) -> bool:
    try:
        return 200 <= pages.get((host, port), path, timeout_s)[0] < 400
    except (OSError, HTTPException):
        return False
