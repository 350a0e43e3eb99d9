"""Both judges of a request: the API server with the chart's policies, and the scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from gpuslice.contract import names
from gpuslice.contract.dialects import DIALECTS
from lab.cluster import manifests
from lab.cluster.controlplane import ControlPlane
from scheduler.dialects.reading import RequestError
from scheduler.dialects.table import DEFAULT, Enabled
from scheduler.kubernetes import requests
from tests.cluster.server import Answer, Server
from tests.support import until

Json = dict[str, Any]
PODS: Final = "/api/v1/namespaces/default/pods"
DRY: Final = "?dryRun=All"


def tried(server: Server, raw: Json) -> Answer:
    """The API server's answer to the pod's creation."""
    return server.ask("POST", PODS + DRY, raw)


def verdict(raw: Json, enabled: Enabled = DEFAULT) -> str:
    """Why the scheduler refuses the pod; "" if it does not."""
    try:
        requests.request(raw, enabled)
    except RequestError as error:
        return str(error)
    return ""


ALL_DIALECTS: Final = ",".join(f"{each.switch}=true" for each in DIALECTS if each.switch)
"""The chart's values that turn them on."""


def rendered(setting: str, *policies: str) -> list[Json]:
    """These policies and their bindings, in force, as with the chart's values."""
    made = manifests.serving([names.SCHEDULER_NAME], f"--set={setting}")
    return manifests.in_force(each for each in made if each["metadata"]["name"] in policies)


@contextmanager
def enforced(
    control: ControlPlane, server: Server, policy: str, setting: str, refused: Json
) -> Iterator[None]:
    """A dialect's policy, beside those of an installation without the dialect."""
    ours = rendered(setting, policy)
    control.apply_json(*ours)
    until(lambda: tried(server, refused).policy == policy, "the policy is in force")
    yield
    for each in ours:
        control.kubectl("delete", each["kind"], policy)
