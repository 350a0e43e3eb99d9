"""The policies warn until the installation works, and refuse from then on."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Final

import pytest

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import Fleet
from lab.cluster.fleet_objects import Shape
from scheduler.admission import _POLL_S
from scheduler.leadership import ANSWERED_S
from tests.cluster.admission import scheduler_lease
from tests.cluster.admission.judging import tried
from tests.cluster.running import replica
from tests.cluster.server import Answer, Server
from tests.requests.pods import asking, pod
from tests.support import until

pytestmark = pytest.mark.cluster

_POLICIES: Final = ("gpuslice-requests", "gpuslice-environment", "gpuslice-agents")
_EVALUATED: Final = (
    r'match_condition_evaluation_seconds_count.*name="gpuslice-requests".*CREATE.* (.+)$'
)
_BINDINGS: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


def set_actions(plane: ControlPlane, policy: str, label: str | None, *actions: str) -> None:
    metadata = {"labels": {names.LABEL_ADMISSION: label}}
    spec = {"validationActions": actions, "matchResources": None}
    patch = json.dumps({"metadata": metadata, "spec": spec})
    kind = "validatingadmissionpolicybinding"
    plane.kubectl("patch", kind, policy, "--type=merge", f"-p={patch}")


@pytest.fixture
def plane(installed: ControlPlane) -> Iterator[ControlPlane]:
    """Set the bindings as the chart does. The first policy's binding audits until the scheduler
    changes it. An operator has fixed the other two."""
    set_actions(installed, _POLICIES[0], names.ADMISSION_AUTO, "Audit")
    # a scheduler of an earlier test may have changed it
    set_actions(installed, f"{_POLICIES[0]}-warn", None, "Warn")
    set_actions(installed, _POLICIES[1], None, "Audit")
    set_actions(installed, _POLICIES[2], names.ADMISSION_AUTO, "Warn", "Audit")
    yield installed
    for policy in _POLICIES:
        set_actions(installed, policy, None, "Deny")
    set_actions(installed, f"{_POLICIES[0]}-warn", None, "Warn")


def test_a_pod_is_warned_of_until_an_agent_and_the_scheduler_are_ready(
    plane: ControlPlane, server: Server
) -> None:
    """The scheduler sets the binding to Deny once its kube-scheduler runs and an agent exists."""

    def invalid() -> Answer:
        return tried(server, pod(asking({names.RESOURCE_GPU: 150})))

    def actions() -> list[list[str]]:
        return [server.get(f"{_BINDINGS}/{p}")["spec"]["validationActions"] for p in _POLICIES]

    def evaluations() -> float:
        """Return how often the API server evaluates the first policy for one pod."""
        so_far = []
        for _ in range(2):
            page = plane.kubectl("get", "--raw=/metrics")
            so_far.append(sum(map(float, re.findall(_EVALUATED, page, re.MULTILINE))))
            assert tried(server, pod(asking({names.RESOURCE_MEMORY_RATIO: 50}))).done
        return so_far[1] - so_far[0]

    until(lambda: "must be 1 to 100" in invalid().warning, "the API server warns")
    alone = replica(plane, "admission")
    try:
        alone.start_extender()
        alone.wait_ready()
        time.sleep(2 * _POLL_S)
        assert invalid().done
        assert actions() == [["Audit"], ["Audit"], ["Warn", "Audit"]]
        alone.start_kube_scheduler()
        until(lambda: bool(scheduler_lease.holder(server)), "kube-scheduler leads")
        time.sleep(ANSWERED_S + 2 * _POLL_S)
        assert invalid().done
        with Fleet(plane, Shape(nodes=1, prefix="enforced-").all_nodes()):
            until(lambda: invalid().policy == "gpuslice-requests", "the pod is refused")
            refusing = [["Deny"], ["Audit"], ["Warn", "Audit"]]
            assert actions() == refusing
            metric = "gpuslice_scheduler_admission_enforced_total 1.0"
            until(lambda: metric in alone.ask("/metrics")[1], "it is counted")
            until(lambda: evaluations() == 1, "its second binding is off")
            # An upgrade applies the chart again, and so resets the binding to Audit.
            set_actions(plane, _POLICIES[0], names.ADMISSION_AUTO, "Audit")
            until(lambda: actions() == refusing, "it refuses again")
    finally:
        alone.stop()
