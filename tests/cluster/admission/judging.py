"""A request is judged twice: by the API server with the chart's policies, and by the scheduler."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from gpuslice.contract import names
from gpuslice.contract.dialects import DIALECTS
from lab.cluster import manifests
from lab.cluster.controlplane import ControlPlane
from scheduler.dialects.reading import RequestError
from scheduler.dialects.table import DEFAULT, Enabled
from scheduler.kubernetes import requests
from tests.cluster.installing import serve
from tests.cluster.server import Answer, Json, Server

PODS: Final = "/api/v1/namespaces/default/pods"
DRY: Final = "?dryRun=All"
MUTATES: Final = "--api-versions=admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
"""Makes Helm render the mutating policies, which Kubernetes has since 1.36."""
SWITCHES: Final = tuple(f"--set={each.switch}=true" for each in DIALECTS if each.switch)
ALL_ON: Final = frozenset(each.name for each in DIALECTS)


def tried(server: Server, raw: Json, path: str = PODS) -> Answer:
    """Return the API server's answer to a trial creation of the pod or workload at this path."""
    return server.ask("POST", path + DRY, raw)


def verdict(raw: Json, enabled: Enabled = DEFAULT) -> str:
    """Why the scheduler refuses the pod; "" if it does not."""
    try:
        requests.request(raw, enabled)
    except RequestError as error:
        return str(error)
    return ""


def agreed(
    server: Server, make: Callable[[random.Random], Json], seed: int, count: int, enabled: Enabled
) -> tuple[int, int, int]:
    """Check that the policies and the scheduler agree on each of `count` random pods. Pods that the
    API server itself refuses do not count. Return how many pods both accept, how many both refuse,
    and how many both refuse with the same text. Texts may differ if a pod has several errors."""
    chance, accepted, refused, same = random.Random(seed), 0, 0, 0
    for _ in range(count):
        raw = make(chance)
        answer, text = tried(server, raw), verdict(raw, enabled)
        if answer.done:
            # The API server normalizes quantities in its answer, for example 1000 to "1k".
            assert verdict(answer.body, enabled) == "", raw
            accepted += 1
        elif answer.policy:
            assert text, (answer.text, raw)
            refused += 1
            same += answer.text == text
    return accepted, refused, same


def policies(*options: str) -> list[Json]:
    """Return the policies and bindings of a chart with these options, set to Deny."""
    made = manifests.serving([names.SCHEDULER_NAME], *options)
    return manifests.in_force(each for each in made if "AdmissionPolicy" in each["kind"])


@contextmanager
def all_dialects(control: ControlPlane) -> Iterator[None]:
    usual = {each["metadata"]["name"] for each in policies()}
    ours = policies(MUTATES, *SWITCHES)
    control.apply_json(*ours)
    yield
    for each in ours:
        if each["metadata"]["name"] not in usual:
            control.kubectl("delete", each["kind"], each["metadata"]["name"])
    serve(control)
