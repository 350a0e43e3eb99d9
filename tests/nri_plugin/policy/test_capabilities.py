"""NVIDIA_DRIVER_CAPABILITIES and its files. Also kernel capabilities that loosen a limit."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

import pytest

from nri_plugin.host.bundle import LOOSENING, loosening, plain
from nri_plugin.policy import capabilities
from nri_plugin.policy.capabilities import ALWAYS
from nri_plugin.policy.model import Device, Edits, Hook, HookStage, Mount

KEY = "NVIDIA_DRIVER_CAPABILITIES"
LIB = "/usr/lib/x86_64-linux-gnu"

FILES = {
    f"{LIB}/libcuda.so.580.65.06": set(),
    f"{LIB}/libnvidia-ml.so.580.65.06": set(),
    f"{LIB}/libnvidia-of-tomorrow.so.999": set(),
    "/usr/bin/nvidia-smi": set(),
    "/lib/firmware/nvidia/580.65.06/gsp_ga10x.bin": set(),
    f"{LIB}/libnvidia-encode.so.580.65.06": {"video"},
    f"{LIB}/vdpau/libvdpau_nvidia.so.580.65.06": {"video"},
    f"{LIB}/libnvidia-ngx.so.580.65.06": {"ngx"},
    f"{LIB}/libGLX_nvidia.so.580.65.06": {"graphics", "display"},
    f"{LIB}/libnvidia-glcore.so.580.65.06": {"graphics", "display"},
    f"{LIB}/libnvidia-egl-gbm.so.1.1.2": {"graphics", "display"},
    f"{LIB}/libnvoptix.so.580.65.06": {"graphics", "display"},
    f"{LIB}/nvidia/xorg/nvidia_drv.so": {"graphics", "display"},
    "/etc/vulkan/icd.d/nvidia_icd.json": {"graphics", "display"},
    "/usr/share/glvnd/egl_vendor.d/10_nvidia.json": {"graphics", "display"},
    "/usr/lib/i386-linux-gnu/libcuda.so.580.65.06": {"compat32"},
}
NODES = [f"/dev/nvidia{name}" for name in ("0", "ctl", "-uvm", "-uvm-tools")]
OF_GRAPHICS = ["/dev/nvidia-modeset", "/dev/dri/renderD128"]
EDITS = Edits(
    mounts=tuple(Mount(path, path) for path in FILES),
    devices=tuple(Device(path, "c", 195, 0) for path in (*NODES, *OF_GRAPHICS)),
)


@pytest.mark.parametrize(
    ("env", "allowed", "text", "cut"),
    [
        ([], ALWAYS, "compute,utility", ()),
        ([f"{KEY}="], ALWAYS, "compute,utility", ()),
        ([f"{KEY}=all"], ALWAYS, "compute,utility", None),
        ([f"{KEY}=all"], ALWAYS | {"video"}, "compute,utility,video", None),
        ([f"{KEY}=graphics, video"], ALWAYS, "compute,utility", ("graphics", "video")),
        ([f"{KEY}=graphics"], ALWAYS | {"graphics"}, "compute,utility,graphics", ()),
        ([], ALWAYS | {"graphics"}, "compute,utility", ()),
        ([f"{KEY}=compute,\n,gaming"], ALWAYS | {"gaming"}, "compute,utility", ("gaming",)),
    ],
)
def test_driver_capabilities_that_are_given_and_that_are_withheld(
    env: list[str], allowed: Set[str], text: str, cut: tuple[str, ...] | None
) -> None:
    selected = capabilities.select(env, allowed)
    assert selected.text == text
    rest = set(capabilities.CAPABILITIES) - selected.given
    assert set(selected.cut) == (rest if cut is None else set(cut))


@pytest.mark.parametrize("beyond", [set(), {"video"}, {"graphics"}, {"display", "ngx", "compat32"}])
def test_files_come_with_their_capability_alone(beyond: set[str]) -> None:
    kept = capabilities.cut(EDITS, ALWAYS | beyond)
    want = [path for path, owners in FILES.items() if not owners or owners & beyond]
    assert [mount.destination for mount in kept.mounts] == want
    nodes = [*NODES, *(OF_GRAPHICS if beyond & {"graphics", "display"} else ())]
    assert [device.path for device in kept.devices] == nodes


def test_what_no_container_with_a_share_may_have() -> None:
    """A container with a share has no socket of a daemon, and no hook that reserves memory."""
    sockets = ("/run/nvidia-persistenced/socket", "/var/run/nvidia-persistenced/socket")
    places = (*sockets, "/run/nvidia-fabricmanager/socket", "/tmp/nvidia-mps")
    kept = (Mount("/usr/bin/nvidia-persistenced", "/x"), Mount("/usr/bin/nvidia-cuda-mps-server"))
    hook = Hook(HookStage.CREATE_CONTAINER, "/x", ("nvidia-cdi-hook", "update-ldcache"))
    limits = replace(hook, args=("nvidia-cdi-hook", "apply-cuda-memory-limits", "G"))
    edits = Edits(mounts=(*map(Mount, places), *kept), hooks=(limits, hook))
    cut = capabilities.cut(edits, frozenset(capabilities.CAPABILITIES))
    assert (cut.mounts, cut.hooks) == (kept, (hook,))


def test_libraries_that_compute_needs() -> None:
    for path, owners in {**FILES, "/run/nvidia-persistenced/socket": set()}.items():
        assert capabilities.is_needed(path) == (not owners and ".so" in path)


# --- the kernel's capabilities, which loosen a limit


@pytest.mark.parametrize("name", sorted(LOOSENING.keys() - {"SYS_PTRACE"}))
@pytest.mark.parametrize("host_pid", [True, False])
def test_what_loosens_is_named_unless_it_is_allowed(name: str, host_pid: bool) -> None:
    held = frozenset({"CHOWN", name, "NET_RAW"})
    assert loosening(held, host_pid, frozenset()) == name
    assert loosening(held, host_pid, {name}) == ""
    assert loosening(held | LOOSENING.keys(), host_pid, {name}) not in ("", name)


def test_common_capabilities_do_not_loosen_the_limit() -> None:
    """containerd's default set and the most common additions loosen no limit. SYS_PTRACE does only
    where the host's processes are visible."""
    text = (
        "CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP"
        " NET_BIND_SERVICE SYS_CHROOT KILL AUDIT_WRITE IPC_LOCK NET_ADMIN SYS_NICE BPF PERFMON"
    )
    common, trace = frozenset(text.split()), frozenset({"SYS_PTRACE"})
    assert loosening(common, True, frozenset()) == ""
    assert loosening(trace, False, frozenset()) == ""
    assert loosening(trace, True, frozenset()) == "SYS_PTRACE"
    assert loosening(trace, True, trace) == ""


def test_a_capability_is_recognized_in_every_spelling() -> None:
    assert {*map(plain, ("SYS_ADMIN", "CAP_SYS_ADMIN", "cap_sys_admin"))} == {"SYS_ADMIN"}
