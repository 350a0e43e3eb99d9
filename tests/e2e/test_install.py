"""gpuslice on a bare cluster, by Helm: installed, upgraded under load, restarted, removed.

In the order of the file: one story of one cluster. Its containerd has NRI off, and its node has
nothing of gpuslice's.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from contract import names
from lab.cluster.product import GPU_NODE_LABEL
from lab.demo import seed
from lab.node.namespace import children
from tests.e2e import machine
from tests.e2e.whole import HALF, Whole, allocatable, running
from tests.support import ROOT, until

pytestmark = pytest.mark.e2e

_QUERY: Final = "nvidia-smi --format=csv,noheader,nounits --query-gpu"
_SMI: Final = f"{_QUERY}=memory.total".split()
_SYSTEM: Final = f"--namespace={names.NAMESPACE}"
_ORDINARY: Final = ("ordinary", "of-the-default-scheduler")
_OF_PODS: Final = (
    *("/var/lib/kubelet/pods/", "/var/lib/cni/", "/var/log/"),
    *("/run/containerd/", "/run/netns/", "/var/lib/kubelet/device-plugins/kubelet"),
)
"""Directories of the kubelet and of containerd, which change with every pod."""
_HALF_BYTES: Final = 11520 << 20
_OUT_OF_MEMORY: Final = 2
_OF_NRI: Final = (
    *("/etc/containerd/.gpuslice-enable-nri.json", "/etc/containerd/conf.d/gpuslice-nri.toml"),
    "/run/nri/nri.sock",
)
"""Of containerd's configuration, which stays until `enable-nri --undo`."""
_NO_IMAGES: Final = [
    f"--set=images.{name}.{field}={value}"
    for name in ("agent", "scheduler")
    for field, value in {"tag": "none", "pullPolicy": "Never"}.items()
]
_OF_PYTEST: Final = "pytest"
"""In the paths of what pytest itself writes meanwhile."""
_NEXT: Final = "0.1.1"
_PROBE: Final = "while true; do cuda-probe; sleep 0.2; done"


@pytest.fixture(scope="module")
def whole(build_dir: Path) -> Iterator[Whole]:
    """On a machine of its own (`make e2e-install`) that machine must be as before at the end."""
    assert build_dir.is_dir()
    is_alone = machine.LAYERS in os.environ
    earlier = machine.look() if is_alone else {}
    with running("2x23040Mi", bare=True) as cluster:
        cluster.run_pod("ordinary")
        cluster.kubectl("label", "node", cluster.state["node"], GPU_NODE_LABEL)
        yield cluster
        labs = [path.name for path in cluster.directory.glob("gpuslice-lab-*")]
    if is_alone:
        left = machine.left(earlier, machine.look(labs))
        assert [line for line in left if _OF_PYTEST not in line] == []


@pytest.fixture(scope="module")
def before(whole: Whole) -> Sequence[str]:
    """The node's files before anything of gpuslice's."""
    return _files(whole)


# --- installations that fail -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "options"),
    [
        # Its hooks need the images, and nothing of it ran that they would clean up.
        (_NO_IMAGES, ("--no-hooks",)),
        (("--set=containerd.nriSocket=/run/no/nri.sock",), ()),
        (("--set=cdi.nvidiaCtk=off", "--set=driver.root=/opt"), ()),
    ],
    ids=["image missing", "no NRI", "no driver"],
)
def test_an_installation_that_fails_leaves_pods_as_they_were(
    whole: Whole, before: Sequence[str], wrong: Sequence[str], options: Sequence[str]
) -> None:
    was = _pod(whole, "ordinary")
    failed = whole.try_install(*wrong, "--timeout=8s")
    assert failed.returncode != 0
    whole.run_pod("meanwhile")
    whole.kubectl("delete", "pod", "meanwhile")
    whole.helm("uninstall", "gpuslice", "--wait", "--timeout=60s", *options)
    assert _pod(whole, "ordinary") == was
    _is_clean(whole, before, of_hooks=not options)


# --- an installation that succeeds ----------------------------------------------------------------


def test_helm_install_turns_nri_on_and_the_documents_pod_runs(
    whole: Whole, before: Sequence[str]
) -> None:
    assert not [each for each in before if names.PLUGIN_NAME in each]
    served = f"--set=schedulerNames={{{names.SCHEDULER_NAME},koord-scheduler}}"
    whole.install("--set=nri.enable=true", "--set=wholeGpus=any", served)
    until(lambda: allocatable(whole, names.RESOURCE_GPU) == "200", "the node has its GPUs")
    assert "disable = true" in _containerd(whole), "the operator's file is as it was"
    whole.kubectl("apply", "-f", str(ROOT / "docs/examples/half.yaml"))
    whole.ready("half")
    assert whole.kubectl("exec", "half", "--", *_SMI).strip() == "11520"
    whole.kubectl("delete", "pod", "half", "--grace-period=1")
    whole.run_pod("full", {names.RESOURCE_NVIDIA_GPU: 1})
    whole.kubectl("apply", "-f", str(seed.PATH))
    whole.ready("pod-example")
    assert whole.inside("pod-example", f"{_QUERY}=memory.total") == "11520\n"
    assert whole.inside("full", f"{_QUERY}=memory.total") == "23040\n"


def test_helm_test_passes(whole: Whole) -> None:
    whole.helm("test", "gpuslice", "--timeout=60s")


def test_upgrades_under_load_are_not_noticed(whole: Whole) -> None:
    """To images of another tag, which the node has."""
    _load(whole, "loaded")
    for image in ("gpuslice-agent", "gpuslice-scheduler"):
        _tag(whole, f"docker.io/library/{image}:{_NEXT}")
    for component in ("agent", "scheduler"):
        whole.install("--reuse-values", f"--set=images.{component}.tag={_NEXT}")
    assert f":{_NEXT}" in whole.kubectl("get", "pods", _SYSTEM, "-o=jsonpath={..image}")
    _is_unharmed(whole, "loaded")


def test_a_drained_node_serves_again(whole: Whole) -> None:
    node = whole.state["node"]
    whole.kubectl("delete", "pod", "full", "pod-example")
    drain = ("--ignore-daemonsets", "--force", "--delete-emptydir-data", "--timeout=60s")
    whole.kubectl("drain", node, *drain, "--disable-eviction", "--grace-period=1")
    whole.kubectl("uncordon", node)
    whole.run_pod("after", {names.RESOURCE_GPU: 50})
    assert whole.inside("after", f"{_QUERY}=memory.total") == "11520\n"


def test_a_node_that_restarts_serves_again(whole: Whole) -> None:
    """As after a loss of power: no process is left, /run is empty."""
    whole.run_pod("survivor", {names.RESOURCE_GPU: 50})
    _restart(whole)
    until(whole.well, "the cluster is well")
    for pod in ("after", "survivor"):
        until(lambda pod=pod: _answers(whole, pod), f"{pod} runs again")  # type: ignore[misc]
        assert whole.inside(pod, f"{_QUERY}=memory.total") == "11520\n"


def test_helm_uninstall_leaves_pods_running_with_what_they_use(
    whole: Whole, before: Sequence[str]
) -> None:
    _load(whole, "last")
    whole.helm("uninstall", "gpuslice", "--wait", "--timeout=100s")
    _is_unharmed(whole, "last")
    kept = (names.HOST_STORE_DIR, names.HOST_RUN_DIR)
    used = [each for each in _new_files(whole, before) if each.startswith(kept)]
    assert [Path(each).name for each in used if each.startswith(kept[0])] == [
        *(".lock", names.FILE_LIBRARY)
    ]
    _is_clean(whole, [*before, *used])


def test_helm_uninstall_leaves_nothing_where_no_pod_has_a_share(
    whole: Whole, before: Sequence[str]
) -> None:
    whole.kubectl("delete", "pod", "--all", "--grace-period=1")
    whole.install("--reuse-values")
    whole.run_pod("again", HALF)
    whole.kubectl("delete", "pod", "again")
    whole.helm("uninstall", "gpuslice", "--wait", "--timeout=100s")
    _is_clean(whole, before)
    assert whole.kubectl("get", "crd", "devices.scheduling.koordinator.sh", "--output=name")


# --- helpers -----------------------------------------------------------------------------------


def _load(whole: Whole, name: str) -> None:
    """A pod with half a GPU that asks the driver for its memory all the time."""
    whole.run_pod(name, {names.RESOURCE_GPU: 50}, command=_PROBE)


def _is_unharmed(whole: Whole, name: str) -> None:
    whole.kubectl("wait", "--for=condition=Ready", "--timeout=5s", f"pod/{name}")
    path = "jsonpath={.status.containerStatuses[0].restartCount}"
    assert whole.kubectl("get", "pod", name, "-o", path) == "0"
    lines = whole.kubectl("logs", name).splitlines()
    probes = [json.loads(line) for line in lines if line.startswith("{")]
    assert len(probes) > 5
    assert {(each["total"], each["more"]) for each in probes} == {(_HALF_BYTES, _OUT_OF_MEMORY)}


def _tag(whole: Whole, name: str) -> None:
    """Give the image of that name's first release this name."""
    current = name.replace(_NEXT, "0.1.0")
    ctr = ["ctr", "--namespace=k8s.io", "images", "tag", current, name]
    enter = ["nsenter", f"--target={whole.pid('containerd')}", "--mount", "--"]
    subprocess.run([*enter, *ctr], check=True, capture_output=True)


def _pod(whole: Whole, name: str) -> Any:
    pod = json.loads(whole.kubectl("get", "pod", name, "-o", "json"))
    status = pod["status"]["containerStatuses"][0]
    return pod["metadata"]["uid"], status["containerID"], status["restartCount"], status["ready"]


def _answers(whole: Whole, pod: str) -> bool:
    return whole.try_kubectl("exec", pod, "--", "true").returncode == 0


def _containerd(whole: Whole) -> str:
    return (_root(whole) / "etc/containerd/config.toml").read_text()


def _root(whole: Whole) -> Path:
    return Path(f"/proc/{whole.pid('containerd')}/root")


def _files(whole: Whole) -> Sequence[str]:
    """Files of the node's that it did not have when the lab made it, but those of pods."""
    layers = Path(whole.state["directory"]) / "root"
    found = []
    for layer in layers.glob("layer-of-*"):
        place = layer.name.removeprefix("layer-of").replace("-", "/")
        for directory, _, files in os.walk(layer / "upper"):
            inside = place + directory.removeprefix(str(layer / "upper"))
            found += [f"{inside}/{name}" for name in files if not _is_gone(directory, name)]
    return sorted(each for each in found if not each.startswith(_OF_PODS))


def _is_gone(directory: str, name: str) -> bool:
    """Whether it is an overlay's mark of a file that was deleted."""
    return stat.S_ISCHR(os.lstat(os.path.join(directory, name)).st_mode)


def _new_files(whole: Whole, before: Sequence[str]) -> Sequence[str]:
    return sorted({*_files(whole)} - {*before, *_OF_NRI})


def _is_clean(whole: Whole, before: Sequence[str], of_hooks: bool = True) -> None:
    """Of gpuslice the definition of Devices is left in the cluster, and nothing on the node.
    of_hooks: also what only the chart's hooks remove."""
    node = json.loads(whole.kubectl("get", "node", whole.state["node"], "-o", "json"))
    for place in ("capacity", "allocatable"):
        assert not [key for key in node["status"][place] if "koordinator" in key]
    assert not [key for key in node["metadata"]["labels"] if "gpuslice.io" in key]
    kinds = "validatingadmissionpolicies,validatingadmissionpolicybindings,clusterroles"
    kinds += ",clusterrolebindings,priorityclasses,flowschemas,prioritylevelconfigurations"
    made = whole.kubectl("get", kinds, "--output=name").split()
    assert {each.rpartition("/")[2] for each in made if "gpuslice" in each} <= {"gpuslice-writer"}
    in_system = "deployments,daemonsets,jobs,serviceaccounts,configmaps,roles"
    in_system += ",leases" * of_hooks
    assert "gpuslice" not in whole.kubectl("get", in_system, _SYSTEM, "--output=name")
    assert whole.kubectl("get", names.DEVICE_PLURAL, "--output=name") == ""
    until(lambda: not _pods_of_ours(whole), "its pods are gone")
    assert _new_files(whole, before) == []


def _pods_of_ours(whole: Whole) -> str:
    return whole.kubectl("get", "pods", _SYSTEM, "--output=name")


def _restart(whole: Whole) -> None:
    """Kill all of the node's processes but its first, and empty /run."""
    owner, containerd = whole.owner, whole.pid("containerd")
    first = next(pid for pid in whole.marked() if pid in _holders(whole))
    os.kill(owner, signal.SIGSTOP)
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
    until(lambda: whole.state["parts"]["containerd"]["pid"] not in (containerd, None), "containerd")


def _holders(whole: Whole) -> Sequence[int]:
    found = []
    for pid in whole.marked():
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if "lab.node.holder" in words and "unshare" in words[0]:
            found += children(pid)
    return found
