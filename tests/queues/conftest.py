"""A control plane with Kueue, gpuslice's objects with queues and KAI's dialect, and garbage
collection, which removes the Workloads of deleted pods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from gpuslice.contract import names
from lab.cluster import kueue, manifests
from lab.cluster.controlplane import ControlPlane, Serving
from lab.cluster.kueue import Kueue
from lab.cluster.supervised import Process
from tests.cluster.admission.counting import QUEUES
from tests.cluster.admission.judging import MUTATES

NAMESPACE: Final = "gpu-workload"
CHART: Final = (QUEUES, "--set=global.gpuSharing=true", MUTATES)
_COLLECTS: Final = "controller-manager"
_USERS: Final = {**kueue.USERS, _COLLECTS: ("system:kube-controller-manager", ())}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Run a control plane with gpuslice's objects, whose policies only warn, and a namespace with
    queues."""
    directory = tmp_path_factory.mktemp("queues")
    with ControlPlane(directory, Serving(users=_USERS)) as started:
        started.install_kinds()
        labels = {names.LABEL_QUEUES: "true"}
        started.apply_json(
            *manifests.serving([names.SCHEDULER_NAME], *CHART),
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": NAMESPACE, "labels": labels},
            },
        )
        collector = Process(
            [
                *(started.programs.kube_controller_manager, "--leader-elect=false"),
                *(f"--kubeconfig={started.kubeconfig(_COLLECTS)}", "--secure-port=0"),
                "--controllers=garbage-collector-controller",
            ],
            directory / "controller-manager.log",
            started.environ(),
        )
        try:
            yield started
        finally:
            collector.kill()


@pytest.fixture(scope="module")
def running_kueue(plane: ControlPlane) -> Iterator[Kueue]:
    with Kueue(plane) as started:
        yield started
