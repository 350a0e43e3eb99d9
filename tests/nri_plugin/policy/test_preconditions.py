"""Properties that a container has before the agent answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract import names
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.nri import translate
from nri_plugin.policy import preconditions
from nri_plugin.policy.model import Container, Device, Mount, Paths, Pod, Rules
from nri_plugin.policy.refusals import Reason, Refused

POD = Pod("uid", "team", "train")
PLAIN = Container("c0", "main", mounts=(Mount("/data", "/srv/data"),))
RUN = "/run/gpuslice"
LIBRARY = "/usr/local/vgpu/store/abc/libvgpu.so"
PATHS = Paths(RUN, LIBRARY)

GIVEN: dict[str, tuple[Container, str]] = {
    "a GPU's node": (
        replace(PLAIN, devices=(Device("/dev/nvidia0", "c", 195, 0),)),
        "device /dev/nvidia0",
    ),
    "a GPU's node, renamed": (
        replace(PLAIN, devices=(Device("/dev/null2", "c", 195, 3),)),
        "device /dev/null2",
    ),
    "a GPU's node as a volume": (
        replace(PLAIN, mounts=(Mount("/x", "/dev//nvidia1"),)),
        "mount /x",
    ),
    "a request to NVIDIA's runtime": (
        replace(PLAIN, mounts=(Mount("/var/run/nvidia-container-devices/0", "/dev/null"),)),
        "mount /var/run/nvidia-container-devices/0",
    ),
    "a CDI device": (
        replace(PLAIN, cdi_names=("nvidia.com/gpu=0", "k8s.gpu.nvidia.com/device=0")),
        "CDI device nvidia.com/gpu=0",
    ),
}


@pytest.mark.parametrize(("container", "text"), GIVEN.values(), ids=GIVEN)
def test_a_grant_beside_a_gpu_of_another_source_is_refused(container: Container, text: str) -> None:
    with pytest.raises(Refused, match=text) as refused:
        preconditions.check_grant(POD, container, Rules())
    assert refused.value.refusal.reason is Reason.GPU_GIVEN


LOADED_FIRST = {
    "an auditor, at the second mention": (("LD_AUDIT=", "LD_AUDIT=/tmp/audit.so"), "must be unset"),
    "libc, after a space": (("LD_PRELOAD=/lib/mine.so libc.so.6",), "must not name libc.so.6"),
    "the driver, by its path": (
        ("LD_PRELOAD=:/usr/lib/x86_64-linux-gnu/libcuda.so.1",),
        "must not name /usr/lib/x86_64-linux-gnu/libcuda.so.1",
    ),
}


@pytest.mark.parametrize(("env", "text"), LOADED_FIRST.values(), ids=LOADED_FIRST)
def test_a_library_before_ours_is_refused_in_every_spelling(env: Sequence[str], text: str) -> None:
    with pytest.raises(Refused, match=text):
        preconditions.check_grant(POD, replace(PLAIN, env=env), Rules())


VOLUMES: dict[str, tuple[Mount, Reason | None]] = {
    "another container's files": (Mount("/.gpuslice", f"{RUN}/old"), Reason.RESTORED),
    "a file of them": (Mount("/grant", f"{RUN}/old/grant"), Reason.RESTORED),
    "files of all containers": (Mount("/x", RUN), Reason.HOST_VOLUME),
    "above them": (Mount("/x", "/run", ("rbind", "ro")), Reason.HOST_VOLUME),
    "above them, in other words": (Mount("/x", "//run/../run/."), Reason.HOST_VOLUME),
    "above them, by the link that every host has": (
        *(Mount("/x", "/var/run/gpuslice"), Reason.HOST_VOLUME),
    ),
    "below them, by that link": (Mount("/x", "/var/run/gpuslice/a"), Reason.RESTORED),
    "beside that link": (Mount("/x", "/var/running"), None),
    "the host": (Mount("/host", "/", ("rbind", "ro")), Reason.HOST_VOLUME),
    "the library": (Mount("/x", LIBRARY), Reason.HOST_VOLUME),
    "the library, to read": (Mount("/x", LIBRARY, ("rbind", "ro")), None),
    "its store": (Mount("/x", "/usr/local/vgpu"), Reason.HOST_VOLUME),
    "beside the store": (Mount("/x", "/usr/local/vgpu/libvgpu.so"), None),
    "beside the files": (Mount("/x", "/run/gpuslice2"), None),
    "no place of the host": (Mount("/proc", "", (), "proc"), None),
}


@pytest.mark.parametrize(("mount", "reason"), VOLUMES.values(), ids=VOLUMES)
def test_volumes_of_the_hosts_limits(mount: Mount, reason: Reason | None) -> None:
    container = replace(PLAIN, mounts=(mount,))
    if reason is None:
        preconditions.check_volumes(container, PATHS)
        return
    with pytest.raises(Refused) as refused:
        preconditions.check_volumes(container, PATHS)
    assert refused.value.refusal.reason is reason
    assert f"mount {mount.destination}: invalid value {mount.source}: " in str(refused.value)


def test_without_a_library_there_is_none_to_write() -> None:
    container = replace(PLAIN, mounts=(Mount("/x", "/usr"),))
    preconditions.check_volumes(container, Paths(RUN, None, "missing"))


@pytest.mark.parametrize("handler", ["", "runc", "crun", "nvidia", "mine"])
def test_a_grant_is_allowed(handler: str) -> None:
    rules = Rules((*Rules().runtime_handlers, "mine"))
    harmless = replace(
        PLAIN,
        devices=(Device("/dev/fuse", "c", 10, 229),),
        mounts=(Mount("/data", "/run/gpuslice-not"),),
    )
    preconditions.check_grant(replace(POD, runtime_handler=handler), harmless, rules)
    preconditions.check_volumes(harmless, PATHS)
    assert preconditions.given_gpu(harmless) == ""


@pytest.mark.parametrize("value", ["all", "none", "void", ""])
def test_values_that_images_set_name_no_gpus(value: str) -> None:
    env = ("PATH=/bin", f"{names.ENV_VISIBLE_DEVICES}={value}", "CUDA_VISIBLE_DEVICES=0")
    assert preconditions.names_gpus(replace(PLAIN, env=env)) == ""


_NAMES_NONE = frozenset({"", "none", "void"})


@given(st.text(min_size=1).filter(lambda text: text != "all"))
def test_a_list_of_gpus_is_reported(value: str) -> None:
    env = (f"{names.ENV_VISIBLE_DEVICES}={value}",)
    listed = {each.strip() for each in value.split(",")} - _NAMES_NONE
    warning = preconditions.names_gpus(replace(PLAIN, env=env))
    assert ("starts without a GPU" in warning) == bool(listed)


def rule(**fields: int) -> nri.LinuxDeviceCgroup:
    made = nri.LinuxDeviceCgroup(allow=True, access="rwm")
    for field, value in fields.items():
        getattr(made, field).value = value
    return made


RULES = {
    "the runtime's for all containers": (nri.LinuxDeviceCgroup(access="rwm"), False),
    "a privileged one's": (rule(), True),
    "every device": (nri.LinuxDeviceCgroup(allow=True, type="a", access="rwm"), True),
    "character devices": (nri.LinuxDeviceCgroup(allow=True, type="c", access="rwm"), False),
    "a major": (rule(major=195), False),
    "a minor": (rule(minor=0), False),
}


@pytest.mark.parametrize(("made", "privileged"), RULES.values(), ids=RULES)
def test_a_privileged_container_is_recognized_by_its_device_rule(
    made: nri.LinuxDeviceCgroup, privileged: bool
) -> None:
    message = nri.Container(id="c0", name="main")
    message.linux.resources.devices.append(made)
    assert translate.container(message).privileged is privileged


def test_cdi_names_are_read_from_the_field_and_from_annotations() -> None:
    message = nri.Container(
        annotations={"cdi.k8s.io/plugin_uid": "a/b=0,nvidia.com/gpu=1", "other": "a/b=2"}
    )
    message.cdi_devices.add(name="nvidia.com/gpu=0")
    assert translate.container(message).cdi_names == (
        *("nvidia.com/gpu=0", "a/b=0", "nvidia.com/gpu=1"),
    )
