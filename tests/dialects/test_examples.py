"""The pods of KAI's, Koordinator's and HAMi's documents, unmodified, on one GPU of 46068 MiB."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster.running import NODE
from tests.dialects import pods
from tests.e2e import inside
from tests.e2e.whole import Whole
from tests.support import MIB, until

pytestmark = pytest.mark.e2e

GPUS = "1x46068Mi"


@pytest.mark.parametrize(
    ("file", "size_bytes", "portion"),
    [("gpu-sharing", 24152899584, "0.50"), ("gpu-memory", 2097152000, "0.04")],
)
def test_kais_pod_lists_one_gpu_and_has_its_share_to_the_byte(
    empty: Whole, file: str, size_bytes: int, portion: str
) -> None:
    pods.apply(empty, f"kai/{file}.yaml")
    (listed,) = inside.logs(empty, "gpu-sharing", "gpu-workload").splitlines()
    assert listed.startswith("GPU 0: ")
    pods.remove(empty)
    pods.create(empty, [pods.asleep(f"kai/{file}.yaml")])
    empty.ready("gpu-sharing")
    assert inside.limit_bytes(empty, "gpu-sharing") == size_bytes
    environ = inside.inside(empty, "gpu-sharing", "env").splitlines()
    assert {f"GPU_PORTION={portion}", f"RUNAI_NUM_OF_GPUS={portion}"} <= set(environ)


def test_kais_named_container_has_the_gpu_and_its_neighbours_none(empty: Whole) -> None:
    name = "gpu-sharing-non-default"
    pods.apply(empty, f"kai/{name}-container.yaml")
    assert inside.logs(empty, name, "gpu-workload").count("GPU 0: ") == 1
    assert inside.sees_no_gpu(empty, name, "sidecar")
    assert inside.sees_no_gpu(empty, name, "another-sidecar")


def test_kais_init_container_has_the_gpu_and_the_main_one_none(empty: Whole) -> None:
    name = "gpu-sharing-init-container"
    pods.apply(empty, f"kai/{name}.yaml")
    empty.ready(name)
    assert inside.logs(empty, name, "gpu-init").count("GPU 0: ") == 1
    assert inside.sees_no_gpu(empty, name, "main-app")


def test_the_pod_of_a_kai_users_notes_runs_to_its_end_with_2000_mib(empty: Whole) -> None:
    pods.apply(empty, "kai/gpu-pod.yaml")
    probed = json.loads(inside.logs(empty, "gpu-pod", "cuda-container", "gpu-workload"))
    assert probed["total"] == 2000 * MIB
    until(
        lambda: pods.fields(empty, "gpu-pod", "gpu-workload")["status"]["phase"] == "Succeeded",
        "the pod has succeeded",
    )


@pytest.fixture
def unchanged_host() -> Iterator[None]:
    """Remove the directories that HAMi's DaemonSet makes. The lab shares them with this machine."""
    made = [each for each in (Path("/usl"), Path("/tmp/vgpulock")) if not each.exists()]
    yield
    for each in made:
        shutil.rmtree(each, ignore_errors=True)


@pytest.mark.usefixtures("unchanged_host")
def test_hamis_daemon_set_of_koordinators_document_runs_beside_ours(empty: Whole) -> None:
    """The lab serves the image, although its pull policy is Always and no registry is reachable."""
    empty.kubectl("label", "node", NODE, "node-type=gpu")
    empty.kubectl("apply", "-f", str(pods.RECORDED / "hami-core-distribute.yaml"))
    done = "daemonset/hami-core-distribute"
    empty.kubectl("rollout", "status", "--timeout=100s", done)
    empty.kubectl("delete", done)
    pods.create(empty, [pods.asleep("kai/gpu-memory.yaml")])
    empty.ready("gpu-sharing")
    assert inside.limit_bytes(empty, "gpu-sharing") == 2000 * MIB


def test_a_pod_of_each_system_shares_the_gpu(empty: Whole) -> None:
    for file in ("koordinator/pod-example", "hami/gpu-pod", "volcano/gpu-pod1"):
        pods.apply(empty, f"{file}.yaml")
    pods.create(empty, [pods.asleep("kai/gpu-memory.yaml")])
    limits_mib = {"pod-example": 23034, "gpu-pod": 3000, "gpu-pod1": 1024, "gpu-sharing": 2000}
    for pod in limits_mib:
        empty.ready(pod)
    assert {pod: inside.limit_bytes(empty, pod) // MIB for pod in limits_mib} == limits_mib
