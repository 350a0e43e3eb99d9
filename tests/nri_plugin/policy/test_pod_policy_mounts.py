"""The mounts of a container with a share: volumes in their way, and strict mode's forwarders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contract import names
from nri_plugin.policy.model import Adjustment, Edits, Mount, Specs
from nri_plugin.policy.refusals import Reason
from tests.nri_plugin.policy.pod_policy_scene import (
    HALF,
    MAIN,
    PATHS,
    A,
    adjusted,
    decide,
    device,
    pod,
    refused,
)


@pytest.mark.parametrize(
    ("destination", "ours"),
    [
        ("/", "/.gpuslice"),
        ("/.gpuslice", "/.gpuslice"),
        ("/.gpuslice/", "/.gpuslice"),
        (".gpuslice", "/.gpuslice"),
        ("//.gpuslice", "/.gpuslice"),
        ("/x/../.gpuslice/region", "/.gpuslice"),
        ("/.gpuslice/grant", "/.gpuslice"),
        ("/etc", "/etc/ld.so.preload"),
        ("/etc/./ld.so.preload", "/etc/ld.so.preload"),
        ("/etc/ld.so.preload/x", "/etc/ld.so.preload"),
    ],
)
def test_a_mount_in_our_way_is_refused(destination: str, ours: str) -> None:
    container = replace(MAIN, mounts=(Mount("/data", "/d"), Mount(destination, "/volume")))
    decision = refused(Reason.MOUNT_COLLISION, pod([HALF]), container)
    assert decision.fields == {"mount": destination, "ours": ours}


FORWARDERS = {soname: f"/store/{soname}" for soname in names.DRIVER_SONAMES}
DRIVER_FILES = (
    Mount("/usr/lib/x/libcuda.so.1", "/host/libcuda.so.1", ("bind", "ro")),
    Mount("/usr/lib/x/libcuda.so.580.65.06", "/host/libcuda.so.580", ("bind", "ro")),
    Mount("/usr/lib/x/libnvidia-ml.so.1", "/host/nvml", ("bind", "ro", "nosuid")),
    Mount("/usr/lib/x/libcudadebugger.so.1", "/host/debugger", ("bind", "ro")),
)
STRICT_SPECS = Specs({A.uuid: device(A, common=Edits(mounts=DRIVER_FILES))})


def test_strict_mode_puts_forwarders_in_the_drivers_place() -> None:
    decision = adjusted(
        pod([HALF]), specs=STRICT_SPECS, paths=replace(PATHS, forwarders=FORWARDERS)
    )
    sources = {mount.destination: mount.source for mount in decision.mounts}
    assert len(sources) == len(decision.mounts)
    assert {place: source for place, source in sources.items() if "lib/x" in place} == {
        "/usr/lib/x/libcuda.so.1": "/store/libcuda.so.1",
        "/usr/lib/x/libcuda.so.580.65.06": "/store/libcuda.so.1",
        "/usr/lib/x/libnvidia-ml.so.1": "/store/libnvidia-ml.so.1",
        "/usr/lib/x/libcudadebugger.so.1": "/host/debugger",
    }
    assert sources["/.gpuslice/driver/libcuda.so.1"] == "/host/libcuda.so.580"
    assert sources["/.gpuslice/driver/libnvidia-ml.so.1"] == "/host/nvml"
    assert sources[names.CONTAINER_PRELOAD]  # beside the preload, not instead of it
    order = [mount.destination for mount in decision.mounts]
    assert order.index(names.CONTAINER_DIR) < order.index("/.gpuslice/driver/libcuda.so.1")


def test_without_strict_mode_the_driver_is_mounted_as_in_the_spec() -> None:
    decision = adjusted(pod([HALF]), specs=STRICT_SPECS)
    assert set(DRIVER_FILES) <= set(decision.mounts)
    assert not [m for m in decision.mounts if m.destination.startswith("/.gpuslice/driver")]


def test_strict_mode_refuses_a_volume_over_the_drivers_place() -> None:
    container = replace(MAIN, mounts=(Mount("/usr/lib/x", "/volume"),))
    paths = replace(PATHS, forwarders=FORWARDERS)
    refused(Reason.MOUNT_COLLISION, pod([HALF]), container, STRICT_SPECS, paths)


@pytest.mark.parametrize("destination", ["/etc/hosts", "/.gpuslice2", "/etcetera", "/proc"])
def test_a_mount_elsewhere_is_allowed(destination: str) -> None:
    container = replace(MAIN, mounts=(Mount(destination, "/volume"),))
    assert isinstance(decide(pod([HALF]), container), Adjustment)


@pytest.mark.parametrize("destination", ["/usr/local", "/usr/local/vgpu", "/usr"])
def test_the_visible_library_gives_way_to_a_volume(destination: str) -> None:
    container = replace(MAIN, mounts=(Mount(destination, "/volume"),))
    decision = adjusted(pod([HALF]), container)
    places = {mount.destination for mount in decision.mounts}
    assert names.CONTAINER_LIBRARY_VISIBLE not in places
    assert names.CONTAINER_PRELOAD in places
