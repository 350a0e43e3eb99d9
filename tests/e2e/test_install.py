"""gpuslice on a bare cluster, by Helm: installed, upgraded under load, restarted, removed.

The tests run in the order of the file, on one cluster. Its node has nothing of gpuslice at first.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from gpuslice.contract import names
from lab.cluster.product import GPU_NODE_LABEL
from lab.demo import seed
from tests.e2e.node import files, is_clean, new_files
from tests.e2e.whole import HALF, Whole, allocatable, running
from tests.support import ROOT, until

pytestmark = pytest.mark.e2e

_SYSTEM: Final = f"--namespace={names.NAMESPACE}"
_HALF_BYTES: Final = 11520 << 20
_OUT_OF_MEMORY: Final = 2
_NO_IMAGES: Final = [
    f"--set=images.{name}.{value}"
    for name in ("agent", "scheduler")
    for value in ("tag=none", "pullPolicy=Never")
]
_NEXT: Final = "0.1.1"
_SETTLED_S: Final = 5.0
_README_SMI: Final = re.compile(r"\$ kubectl exec half -- nvidia-smi .*\n((?:\|.*\|\n)+)```")
_PROBE: Final = "while true; do cuda-probe; sleep 0.2; done"


@pytest.fixture(scope="module")
def whole(build_dir: Path) -> Iterator[Whole]:
    assert build_dir.is_dir()
    with running("2x23040Mi", bare=True) as cluster:
        cluster.run_pod("ordinary")
        cluster.kubectl("label", "node", cluster.state["node"], GPU_NODE_LABEL)
        yield cluster


@pytest.fixture(scope="module")
def before(whole: Whole) -> Sequence[str]:
    """The node's files before gpuslice is installed."""
    return files(whole)


# --- an installation that fails


@pytest.mark.parametrize(
    ("wrong", "options"),
    [
        # The chart's hooks need the missing images, and have nothing to clean up here.
        (_NO_IMAGES, ("--no-hooks",)),
        (("--set=containerd.nriSocket=/run/no/nri.sock",), ()),
    ],
    ids=["image missing", "no NRI"],
)
def test_an_installation_that_fails_leaves_pods_as_they_were(
    whole: Whole, before: Sequence[str], wrong: Sequence[str], options: Sequence[str]
) -> None:
    """options: arguments for `helm uninstall`."""

    def ordinary() -> Any:
        pod = whole.pod("ordinary")
        return pod["metadata"]["uid"], pod["status"]["containerStatuses"]

    was = ordinary()
    assert whole.try_install(*wrong, "--timeout=8s").returncode != 0
    whole.run_pod("meanwhile")
    whole.kubectl("delete", "pod", "meanwhile")
    time.sleep(_SETTLED_S)  # a working scheduler would have changed the policies by now
    # A pod that requests a share and names default-scheduler: a working installation refuses it.
    asked = {"resources": {"limits": {names.RESOURCE_GPU: 50}}}
    container = {"name": "asked", "image": "busybox", **asked}
    overrides = json.dumps({"spec": {"containers": [container]}})
    run = ("run", "asked", "--image=busybox", "--dry-run=server", f"--overrides={overrides}")
    assert "asked created" in whole.kubectl(*run)
    whole.helm("uninstall", "gpuslice", "--wait", "--timeout=60s", *options)
    assert ordinary() == was
    is_clean(whole, before, of_hooks=not options)


# --- one that succeeds


def test_the_documents_pod_runs_after_helm_install(whole: Whole, before: Sequence[str]) -> None:
    assert not [each for each in before if names.PLUGIN_NAME in each]
    served = f"--set=schedulerNames={{{names.SCHEDULER_NAME},koord-scheduler}}"
    whole.install("--set=wholeGpus=any", served)
    until(lambda: allocatable(whole, names.RESOURCE_GPU) == "200", "the node has its GPUs")
    whole.helm("test", "gpuslice", "--timeout=60s")
    whole.kubectl("apply", "-f", str(ROOT / "docs/examples/half.yaml"))
    whole.ready("half")
    (shown,) = _README_SMI.findall((ROOT / "README.md").read_text())
    assert shown in whole.kubectl("exec", "half", "--", "nvidia-smi")
    whole.kubectl("delete", "pod", "half", "--grace-period=1")
    whole.run_pod("full", {names.RESOURCE_NVIDIA_GPU: 1})
    whole.kubectl("apply", "-f", str(seed.PATH))
    whole.ready("pod-example")
    assert whole.gpu("pod-example", "memory.total") == "11520"
    assert whole.gpu("full", "memory.total") == "23040"


def test_upgrades_under_load_harm_no_pod(whole: Whole) -> None:
    """The upgrades set other image tags, and the node already has these images."""
    _load(whole, "loaded")
    enter = ["nsenter", f"--target={whole.pid('containerd')}", "--mount", "--"]
    for component in ("agent", "scheduler"):
        image = f"docker.io/library/gpuslice-{component}"
        ctr = ["ctr", "--namespace=k8s.io", "images", "tag", f"{image}:0.1.0", f"{image}:{_NEXT}"]
        subprocess.run([*enter, *ctr], check=True, capture_output=True)
    for component in ("agent", "scheduler"):
        whole.install("--reuse-values", f"--set=images.{component}.tag={_NEXT}")
    assert f":{_NEXT}" in whole.kubectl("get", "pods", _SYSTEM, "-o=jsonpath={..image}")
    whole.kubectl("delete", "pod", "pod-example")
    whole.run_pod("newer", HALF)
    assert whole.gpu("newer", "memory.total") == "11520"
    whole.kubectl("delete", "pod", "newer")
    _is_unharmed(whole, "loaded")


def test_a_node_that_restarts_serves_again(whole: Whole) -> None:
    """All processes of the node are killed and /run is emptied, as after a loss of power."""
    whole.kubectl("delete", "pod", "full", "loaded", "--grace-period=1")
    whole.run_pod("survivor", {names.RESOURCE_GPU: 50})
    owner, containerd, first = whole.owner, whole.pid("containerd"), whole.first()
    os.kill(owner, signal.SIGSTOP)
    # Kill all processes of the node except its first.
    script = """
    kill -9 -1
    mounts=$(cut -d' ' -f5 /proc/self/mountinfo | grep -E '^/(run|var/lib/kubelet)/' | sort -r)
    for mount in $mounts; do [ $mount = /run/cdi ] || umount -l $mount; done
    find /run -mindepth 1 -maxdepth 1 ! -name cdi -exec rm -rf {} +
    """
    command = ["nsenter", f"--target={first}", "--mount", "--pid", "--", "sh", "-c", script]
    try:
        subprocess.run(command, check=True, capture_output=True)
    finally:
        os.kill(owner, signal.SIGCONT)
    whole.until_back("containerd", containerd)
    until(whole.well, "the cluster is well")
    until(lambda: whole.answers("survivor"), "the pod runs again")
    assert whole.gpu("survivor", "memory.total") == "11520"


def test_helm_uninstall_leaves_pods_running_with_what_they_use(
    whole: Whole, before: Sequence[str]
) -> None:
    _load(whole, "last")
    whole.helm("uninstall", "gpuslice", "--wait", "--timeout=100s")
    _is_unharmed(whole, "last")
    used = [each for each in new_files(whole, before) if each.startswith(names.HOST_RUN_DIR)]
    store = whole.root / names.HOST_RUN_DIR.lstrip("/") / names.DIR_STORE
    assert len([*store.rglob(names.FILE_LIBRARY)]) == 1, "the release that the pod maps"
    is_clean(whole, [*before, *used])


def test_strict_mode_limits_a_container_and_uninstall_leaves_nothing(
    whole: Whole, before: Sequence[str]
) -> None:
    """The agent's pod sees the driver at another path than the host. Mounts use the host's path."""
    whole.kubectl("delete", "pod", "--all", "--grace-period=1")
    whole.install("--set=agent.strict=true")
    whole.run_pod("again", HALF)
    assert whole.gpu("again", "memory.total") == "11520"
    assert "libcuda.so.1" in whole.inside("again", f"ls {names.CONTAINER_DRIVER_DIR}")
    whole.kubectl("delete", "pod", "again")
    whole.helm("uninstall", "gpuslice", "--wait", "--timeout=100s")
    is_clean(whole, before)
    assert whole.kubectl("get", "crd", "devices.scheduling.koordinator.sh", "--output=name")


def _load(whole: Whole, name: str) -> None:
    """Run a pod with half a GPU. The pod repeatedly prints the GPU memory that it sees."""
    whole.run_pod(name, {names.RESOURCE_GPU: 50}, command=_PROBE)


def _is_unharmed(whole: Whole, name: str) -> None:
    whole.kubectl("wait", "--for=condition=Ready", "--timeout=5s", f"pod/{name}")
    assert whole.restarts(name) == 0
    lines = whole.kubectl("logs", name).splitlines()
    probes = [json.loads(line) for line in lines if line.startswith("{")]
    assert len(probes) > 5
    assert {(each["total"], each["more"]) for each in probes} == {(_HALF_BYTES, _OUT_OF_MEMORY)}
