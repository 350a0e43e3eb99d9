"""Messages are translated to values and back. Also which directory a container has mounted."""

from __future__ import annotations

import pytest

from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.nri import translate
from nri_plugin.policy.merged import CgroupRule
from nri_plugin.policy.model import Container, Device, Hook, HookStage, Mount, Pod
from nri_plugin.policy.plan import ContainerPlan

RUN = "/run/gpuslice"


@pytest.mark.parametrize(
    ("source", "key"),
    [
        ("/run/gpuslice/c1", "c1"),
        ("/run/gpuslice/pod-u/", "pod-u"),
        ("/run/gpuslice", None),
        ("/run/gpuslice/", None),
        ("/run/gpuslice/a/b", None),
        ("/run/gpuslice/../x/c1", None),
        ("/home/c1", None),
    ],
)
def test_the_key_is_that_of_the_mounted_directory(source: str, key: str | None) -> None:
    message = nri.Container(mounts=[nri.Mount(destination="/.gpuslice", source=source)])
    assert translate.key_of(message, RUN) == key
    assert translate.key_of(message, RUN + "/") == key
    message.mounts[0].destination = "/data"
    assert translate.key_of(message, RUN) is None


def test_pods_and_containers() -> None:
    pod = nri.PodSandbox(uid="u", namespace="ns", name="n", labels={"a": "b"})
    pod.annotations["c"] = "d"
    assert translate.pod(pod) == Pod("u", "ns", "n", {"a": "b"}, {"c": "d"})
    container = nri.Container(id="i", name="c", env=["A=1", "A=2"])
    container.mounts.add(destination="/d", source="/s", type="bind", options=["ro"])
    mount = Mount("/d", "/s", ("ro",), "bind")
    assert translate.container(container) == Container("i", "c", ("A=1", "A=2"), (mount,))
    container.state = nri.CONTAINER_CREATED
    assert translate.running(container, None, RUN).waiting


@pytest.mark.parametrize("stage", HookStage)
def test_every_hook_has_its_place(stage: HookStage) -> None:
    wanted = ContainerPlan(env=(), hooks=(Hook(stage, "/h", ("h", "x"), ("E=1",), 7),))
    hooks = translate.reply(wanted).adjust.hooks
    ((field, (hook,)),) = hooks.ListFields()
    assert field.name.replace("_", "") == stage.value.lower()
    assert (hook.path, list(hook.args), list(hook.env)) == ("/h", ["h", "x"], ["E=1"])
    assert hook.timeout.value == 7


def test_a_mode_of_zero_is_not_absent() -> None:
    devices = (Device("/dev/a", "c", 1, 2, 0, 0, 0), Device("/dev/b", "b", 3, 4))
    given, plain = translate.reply(ContainerPlan(devices=devices)).adjust.linux.devices
    for field in ("file_mode", "uid", "gid"):
        assert given.HasField(field)
        assert not plain.HasField(field)


def test_cgroup_rules_that_allow_are_judged() -> None:
    request = nri.ValidateContainerAdjustmentRequest()
    rules = request.adjust.linux.resources.devices
    rules.add(allow=False, type="a")
    rules.add(allow=True, type="c", access="rw").major.value = 195
    rules.add(allow=True, type="c", access="m").minor.value = 0
    expected = (CgroupRule("c", 195, None, "rw"), CgroupRule("c", None, 0, "m"))
    assert translate.merged(request, "50-gpuslice").cgroup_rules == expected


def rule(allow: bool = True, kind: str = "", **numbers: int) -> nri.LinuxDeviceCgroup:
    made = nri.LinuxDeviceCgroup(allow=allow, type=kind, access="rwm")
    for field, value in numbers.items():
        getattr(made, field).value = value
    return made


RULES = {
    "the runtime's for all containers": (rule(allow=False), False),
    "a privileged one's": (rule(), True),
    "every device": (rule(kind="a"), True),
    "character devices": (rule(kind="c"), False),
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
    annotations = {"cdi.k8s.io/plugin_uid": "a/b=0,nvidia.com/gpu=1", "other": "a/b=2"}
    message = nri.Container(annotations=annotations)
    message.cdi_devices.add(name="nvidia.com/gpu=0")
    names = translate.container(message).cdi_names
    assert names == ("nvidia.com/gpu=0", "a/b=0", "nvidia.com/gpu=1")
