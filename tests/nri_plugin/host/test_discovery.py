"""Which of the host's directories and driver roots is chosen, and where the agent sees it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpuslice.gpu.driver_root import HostView
from nri_plugin.child import in_root
from nri_plugin.command_line import from_arguments
from nri_plugin.host import bundle, discovery
from nri_plugin.host.cdi_generator import render
from nri_plugin.host.driver_root import DriverRoot
from nri_plugin.settings import Settings
from tests.nri_plugin.cdi import specs
from tests.nri_plugin.host_files import put
from tests.nri_plugin.service_scene import UUID

DOCKERS, K3S = Path("/run/containerd"), Path("/run/k3s/containerd")
TASKS = "io.containerd.runtime.v2.task/k8s.io"
CONTAINERS = Path("/run/nvidia/driver")


@pytest.mark.parametrize(
    ("docker", "k3s", "chosen"),
    [
        (None, None, DOCKERS),
        (None, 0, K3S),
        (0, 0, DOCKERS),
        (0, 5, K3S),
        (4, 5, K3S),
        (6, 5, DOCKERS),
    ],
    ids=["none", "one", "both", "docker beside k3s", "an old installation", "kubeadm"],
)
def test_the_state_directory_is_that_of_the_kubelets_containerd(
    tmp_path: Path, docker: int | None, k3s: int | None, chosen: Path
) -> None:
    """docker, k3s: the time in seconds of the last change of containers in Docker's or k3s' state
    directory; 0 if it has no containers of Kubernetes, None if it does not exist."""
    for state, changed_s in ((DOCKERS, docker), (K3S, k3s)):
        place = tmp_path / state.relative_to("/")
        if changed_s is not None:
            place.mkdir(parents=True)
        if changed_s:
            (place / TASKS).mkdir(parents=True)
            os.utime(place / TASKS, (changed_s, changed_s))
    assert discovery.containerd_state(HostView(tmp_path)) == chosen


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for directory in ("proc", "run/k3s/containerd", "run/containerd", "var"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "var/run").symlink_to("/run")
    return tmp_path


def settings(root: Path, *options: str) -> Settings:
    return from_arguments(["--library", "/l", f"--host-root={root}", *options], {})


def test_paths_are_the_hosts_seen_below_its_root(root: Path) -> None:
    (root / "run/k3s/containerd" / TASKS).mkdir(parents=True)
    found = settings(root)
    assert found.containerd_state == root / "run/k3s/containerd"
    assert found.nri_socket == root / "run/nri/nri.sock"
    assert list(found.cdi_dirs) == [root / "etc/cdi", root / "run/cdi"]
    assert found.device_plugin_dir == root / "var/lib/kubelet/device-plugins"
    assert found.kubelet_dir == root / "var/lib/kubelet"
    assert found.run_dir == Path("/run/gpuslice"), "the same path in both"
    assert found.view.on_host(found.nri_socket) == Path("/run/nri/nri.sock")
    given = settings(root, "--containerd-state=/var/run/containerd", "--kubelet-dir=/data/kubelet")
    assert given.containerd_state == root / "run/containerd"
    assert given.kubelet_dir == root / "data/kubelet"
    # The kubelet's directory is the one that has its socket.
    put(root / "var/lib/k0s/kubelet/pod-resources/kubelet.sock")
    assert settings(root).kubelet_dir == root / "var/lib/k0s/kubelet"


def test_what_is_missing_names_the_hosts_path_and_what_to_do(root: Path) -> None:
    found = settings(root)
    assert not discovery.missing(found.view, found.containerd_state)
    (root / "run/k3s/containerd").rmdir()
    (root / "run/containerd").rmdir()
    found = settings(root)
    (text,) = discovery.missing(found.view, found.containerd_state)
    assert text.startswith("/run/containerd does not exist: ")
    assert "set containerd.stateDir" in text and all(str(each) in text for each in bundle.STATES)
    nowhere = root / "nowhere"
    (text,) = discovery.missing(HostView(nowhere), found.containerd_state)
    assert text.startswith(f"{nowhere}: must be the host's root directory: mount the host's /")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may enter another root")
def test_a_hosts_program_runs_in_its_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's image has no other program than Python. The host here has busybox."""
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, tmp_path / "pwd")
    monkeypatch.setenv("PATH", "/nowhere")

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(in_root(tmp_path, command), text=True, capture_output=True)

    assert run("/pwd").stdout == "/\n"
    assert "No such file" in run("/none").stderr
    assert in_root(Path("/"), ["pwd"]) == ["pwd"]


HOOKS = [
    {"hookName": "createContainer", "path": "/usr/bin/x", "args": ["--link", "/a::/b"]},
    {"hookName": "poststop", "path": "/driver-root/x", "args": ["/driver-root/a::/driver-root/b"]},
]


@pytest.mark.parametrize("host", ["/", "/run/nvidia/driver"])
def test_a_generated_spec_names_the_hosts_files(host: str) -> None:
    """nvidia-ctk generated the spec below the agent's mount of the driver's root."""
    root = DriverRoot(Path(host), Path("/driver-root"))
    own = {"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/driver-root/dev/nvidia0"}]}
    common = {"env": ["A=x"], **specs.mount("/driver-root/a", "/a"), "hooks": HOOKS}
    printed = specs.gpu(own, UUID, containerEdits=common)
    text, problem = render(printed.encode(), [UUID], root)
    wanted = printed.replace("/driver-root", host.rstrip("/"))
    assert (problem, json.loads(text)) == ("", json.loads(wanted))


def test_a_program_of_the_container_keeps_its_path() -> None:
    """runc executes a startContainer hook in the container, where the paths are the container's."""
    hook = {"hookName": "startContainer", "path": "/driver-root/x", "args": ["/driver-root/a"]}
    spec = {"containerEdits": {"hooks": [hook]}, "devices": []}
    assert DriverRoot(Path("/"), Path("/driver-root")).translate(spec) == spec


def test_what_a_spec_must_not_hold_stays_for_its_reader() -> None:
    nodes = [{}, {"path": "/driver-root/a"}]
    edits = {"mounts": [None], "hooks": 7, "deviceNodes": nodes}
    odd = {"devices": [{"name": "a", "containerEdits": 7}], "containerEdits": edits}
    translated = DriverRoot(Path("/"), Path("/driver-root")).translate(odd)
    nodes[1] = {"path": "/driver-root/a", "hostPath": "/a"}
    assert translated == odd


def test_files_are_looked_up_below_the_mount(tmp_path: Path) -> None:
    """The agent looks for device nodes below the mount of the driver root. The /dev of its own pod
    lacks device nodes that were made after the pod."""
    mount = tmp_path / "driver-root"
    real = put(mount / "dev/real")
    (mount / "dev/nvidia0").symlink_to("/dev/real")
    root = DriverRoot(CONTAINERS, mount)
    assert root.seen(f"{CONTAINERS}/dev/nvidia0") == real
    assert DriverRoot(CONTAINERS, mount, tmp_path).seen("/driver-root/dev/real") == real
    assert root.stat(f"{CONTAINERS}/dev/nvidia0").st_ino == real.stat().st_ino
    with pytest.raises(FileNotFoundError):
        root.stat(f"{CONTAINERS}/dev/nvidiactl")


def test_the_options_of_nvidia_ctk(tmp_path: Path) -> None:
    mount = tmp_path / "driver-root"
    container, of_root = DriverRoot(CONTAINERS, mount), f"--driver-root={mount}"
    assert container.options("") == (of_root, "--dev-root=/")
    put(mount / "dev/nvidiactl")
    own = (of_root, f"--dev-root={mount}", "--nvidia-cdi-hook-path=/x")
    assert container.options("/x") == own
    assert DriverRoot(Path("/"), mount).options("")[1] == f"--dev-root={mount}"


def test_hooks_run_a_program_of_the_host(tmp_path: Path) -> None:
    """runc executes a hook on the host, where the agent's image is not mounted. Therefore the agent
    copies its own program there. It knows all hooks that the agent's nvidia-ctk writes, while the
    host's program may be older."""
    mount, programs = tmp_path / "driver-root", tmp_path / "vgpu"
    ours = put(tmp_path / "nvidia-ctk", "#!/bin/sh\n")
    ours.chmod(0o755)
    container = DriverRoot(CONTAINERS, mount)
    for _ in range(2):
        assert container.hook([str(ours)], programs) == f"{programs}/nvidia-ctk"
    assert sorted(os.listdir(programs)) == [".lock", "nvidia-ctk"]
    assert (programs / "nvidia-ctk").stat().st_mode & 0o777 == 0o755
    ours.write_text("#!/bin/sh\n# newer\n")
    container.hook([str(ours)], programs)
    assert (programs / "nvidia-ctk").read_text() == ours.read_text()
    ours.write_text("of another machine")
    assert container.hook([str(ours)], programs) != f"{programs}/nvidia-ctk"

    # In the host's root our program cannot run, because that root has no libraries here.
    root = DriverRoot(Path("/"), mount, mount)
    put(mount / "etc/os-release")
    assert root.hook([str(ours)], programs) == ""
    put(mount / "usr/bin/nvidia-cdi-hook", "#!/bin/sh\n").chmod(0o755)
    for command in (str(ours), "/nowhere/nvidia-ctk"):
        assert root.hook([command], programs) == "/usr/bin/nvidia-cdi-hook"
