"""Messages to values and back, and whose directory a container has mounted."""

from __future__ import annotations

import pytest

from nri_plugin import translate
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.model import Adjustment, Container, Device, Hook, HookStage, Mount, Pod

RUN = "/run/gpuslice"


@pytest.mark.parametrize(
    ("destination", "source", "key"),
    [
        ("/.gpuslice", "/run/gpuslice/c1", "c1"),
        ("/.gpuslice", "/run/gpuslice/pod-u/", "pod-u"),
        ("/.gpuslice", "/run/gpuslice", None),
        ("/.gpuslice", "/run/gpuslice/", None),
        ("/.gpuslice", "/run/gpuslice/a/b", None),
        ("/.gpuslice", "/run/gpuslice/../x/c1", None),
        ("/.gpuslice", "/home/c1", None),
        ("/data", "/run/gpuslice/c1", None),
    ],
)
def test_key_of(destination: str, source: str, key: str | None) -> None:
    message = nri.Container(mounts=[nri.Mount(destination=destination, source=source)])
    assert translate.key_of(message, RUN) == key
    assert translate.key_of(message, RUN + "/") == key


def test_pods_and_containers() -> None:
    pod = nri.PodSandbox(uid="u", namespace="ns", name="n", labels={"a": "b"})
    pod.annotations["c"] = "d"
    assert translate.pod(pod) == Pod("u", "ns", "n", {"a": "b"}, {"c": "d"})
    container = nri.Container(id="i", name="c", env=["A=1", "A=2"])
    container.mounts.add(destination="/d", source="/s", type="bind", options=["ro"])
    assert translate.container(container) == Container(
        "i", "c", ("A=1", "A=2"), (Mount("/d", "/s", ("ro",), "bind"),)
    )


@pytest.mark.parametrize("stage", HookStage)
def test_every_hook_has_its_place(stage: HookStage) -> None:
    wanted = Adjustment(env=(), hooks=(Hook(stage, "/h", ("h", "x"), ("E=1",), 7),))
    hooks = translate.adjustment(wanted).hooks
    ((field, (hook,)),) = hooks.ListFields()
    assert field.name.replace("_", "") == stage.value.lower()
    assert (hook.path, list(hook.args), list(hook.env)) == ("/h", ["h", "x"], ["E=1"])
    assert hook.timeout.value == 7


def test_a_mode_of_zero_is_not_absent() -> None:
    devices = (Device("/dev/a", "c", 1, 2, 0, 0, 0), Device("/dev/b", "b", 3, 4))
    given, plain = translate.adjustment(Adjustment((), devices=devices)).linux.devices
    for field in ("file_mode", "uid", "gid"):
        assert given.HasField(field)
        assert not plain.HasField(field)
