"""Facts of the host's device files and mounts, below a root that stands for the host's."""

from __future__ import annotations

from pathlib import Path

import pytest

from nri_plugin.doctor import host_kernel
from nri_plugin.doctor.facts import DevChar
from nri_plugin.host.driver_root import WITHOUT_MOUNT, DriverRoot


def nodes(directory: Path) -> None:
    """A link to a node stands for a node, which only root could make."""
    (directory / "nvidia-caps").mkdir(parents=True)
    (directory / "nvidia0").symlink_to("/dev/null")
    (directory / "nvidia-caps/nvidia-cap1").symlink_to("/dev/zero")
    (directory / "nvidia.log").touch()


@pytest.mark.parametrize("below", ["", "run/nvidia/driver"])
def test_nodes_without_a_link(tmp_path: Path, below: str) -> None:
    """The driver's nodes are the host's, or those of a driver container."""
    nodes(tmp_path / below / "dev")
    (tmp_path / "dev/char").mkdir(parents=True)
    root = DriverRoot(Path("/") / below, tmp_path / below, tmp_path)
    both = ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1")
    assert host_kernel.dev_char(tmp_path, root) == DevChar(both, both)
    (tmp_path / "dev/char/1:3").symlink_to("../nvidia0")
    assert host_kernel.dev_char(tmp_path, root).lacking == both[1:]
    assert host_kernel.dev_char(tmp_path / "none", WITHOUT_MOUNT).nodes == ()


def test_whether_apparmor_is_enabled(tmp_path: Path) -> None:
    assert not host_kernel.apparmor(tmp_path)
    directory = tmp_path / "sys/module/apparmor/parameters"
    directory.mkdir(parents=True)
    for text in ("N\n", "Y\n"):
        (directory / "enabled").write_text(text)
        assert host_kernel.apparmor(tmp_path) is (text == "Y\n")


MOUNTS = """\
100 90 0:50 / / rw,relatime - overlay overlay rw
101 100 0:22 /gpuslice /run/gpuslice rw - tmpfs tmpfs rw
102 100 0:22 /containerd /run/containerd rw master:5 - tmpfs tmpfs rw
103 100 0:22 /shared /run/shared rw shared:6 master:5 - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "reaches"),
    [
        ("/run/gpuslice", False),
        ("/run/containerd", False),
        ("/run/shared", True),
        ("/run/shared/below", True),
        ("/run/sharedness", False),
        ("/elsewhere", False),
    ],
)
def test_mounts_that_reach_the_host(path: str, reaches: bool) -> None:
    assert host_kernel.propagates(MOUNTS, Path(path)) is reaches


def test_the_flags_of_the_agent_in_this_pod(tmp_path: Path) -> None:
    """The doctor in `kubectl exec` has none; another pod's agent is not asked."""

    def process(name: str, namespace: int, *command: str) -> None:
        (tmp_path / name / "ns").mkdir(parents=True)
        (tmp_path / name / "ns/mnt").symlink_to(f"mnt:[{namespace}]")
        text = "".join(f"{word}\0" for word in ("/usr/bin/python", *command))
        (tmp_path / name / "cmdline").write_text(text)

    process("self", 2, "-m", "nri_plugin", "doctor")
    process("10", 1, "-m", "nri_plugin", "--library", "/elsewhere")
    process("11", 2, "-m", "nri_plugin", "distribute", "--library", "/l")
    process("12", 2, "-m", "nri_plugin")
    process("13", 2)
    assert host_kernel.agent_arguments(tmp_path) == ()
    process("14", 2, "-m", "nri_plugin", "--library", "/l", "--strict")
    assert list(host_kernel.agent_arguments(tmp_path)) == ["--library", "/l", "--strict"]
