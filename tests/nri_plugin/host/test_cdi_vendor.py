"""GPU injection: the driver's files that the operator allows, and CDI devices by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from contract import names
from nri_plugin.host.node import cdi_by_name_problem
from nri_plugin.nri import translate
from nri_plugin.policy.model import (
    Adjustment,
    CdiDevice,
    Device,
    Edits,
    InjectionOptions,
    Mount,
    Specs,
)
from nri_plugin.policy.refusals import Refusal
from tests.nri_plugin import objects
from tests.nri_plugin.policy.pod_policy_scene import (
    HALF,
    LIBCUDA,
    MAIN,
    PATHS,
    SPECS,
    A,
    decide,
    grant,
    pod,
)

ENCODE = Mount("/usr/lib/libnvidia-encode.so.580", "/host/encode", ("bind", "ro"))
RENDER = Device("/dev/dri/renderD128", "c", 226, 128)
WHOLE_DRIVER = Specs(
    {
        A.uuid: CdiDevice(
            A.uuid,
            "/etc/cdi/nvidia.yaml",
            Edits(devices=(Device("/dev/nvidia0", "c", 195, 0), RENDER)),
            Edits(mounts=(LIBCUDA, ENCODE)),
        )
    }
)
CAPABILITIES = names.ENV_DRIVER_CAPABILITIES
GRANTED = pod([HALF], {"main": [grant(A, 5 << 30, 30)]})


def decided(
    options: InjectionOptions, specs: Specs = WHOLE_DRIVER, env: Sequence[str] = ()
) -> objects.Result:
    container = replace(MAIN, env=env)
    return objects.decide(GRANTED, container, [A], specs, replace(PATHS, injection=options))


@pytest.mark.parametrize(
    ("allowed", "asked", "value", "cut", "came"),
    [
        (set(), "all", "compute,utility", True, []),
        (set(), "video", "compute,utility", True, []),
        (set(), None, "compute,utility", False, []),
        ({"video"}, "video", "compute,utility,video", False, [ENCODE.destination]),
        ({"video"}, None, "compute,utility", False, []),
        ({"graphics"}, "graphics,video", "compute,utility,graphics", True, [RENDER.path]),
    ],
)
def test_the_driver_is_held_to_what_the_operator_allows(
    allowed: set[str], asked: str | None, value: str, cut: bool, came: list[str]
) -> None:
    env = [] if asked is None else [f"{CAPABILITIES}={asked}"]
    decision = decided(InjectionOptions(allowed), env=env)
    assert isinstance(decision, Adjustment)
    assert dict(decision.env)[CAPABILITIES] == value
    assert bool(decision.cut) is cut
    injected = [mount.destination for mount in decision.mounts]
    injected += [device.path for device in decision.devices]
    assert LIBCUDA.destination in injected and "/dev/nvidia0" in injected
    assert [path for path in (ENCODE.destination, RENDER.path) if path in injected] == came


def test_by_name_the_limit_comes_and_the_spec_is_left_to_the_runtime() -> None:
    decision = decided(InjectionOptions(by_name=True), SPECS)
    applied = decide(GRANTED)
    assert isinstance(decision, Adjustment) and isinstance(applied, Adjustment)
    assert decision.cdi_devices == (f"nvidia.com/gpu={A.uuid}",)
    theirs = replace(SPECS.devices[A.uuid], kind=names.CDI_KINDS[1])
    plugins = decided(InjectionOptions(by_name=True), Specs({A.uuid: theirs}))
    assert isinstance(plugins, Adjustment)
    assert plugins.cdi_devices == (f"k8s.device-plugin.nvidia.com/gpu={A.uuid}",)
    assert (decision.devices, decision.hooks) == ((), ())
    assert set(applied.mounts) - set(decision.mounts) == {LIBCUDA}
    assert set(applied.env) - set(decision.env) == {("NVIDIA_CTK", "x")}
    message = translate.reply(decision).adjust
    assert [device.name for device in message.cdi_devices] == [f"nvidia.com/gpu={A.uuid}"]
    assert not applied.cdi_devices


def test_by_name_what_hides_the_driver_is_seen_in_the_spec() -> None:
    container = replace(MAIN, mounts=(Mount("/.gpuslice", "/x"),))
    paths = replace(PATHS, injection=InjectionOptions(by_name=True))
    decision = objects.decide(GRANTED, container, [A], SPECS, paths)
    assert isinstance(decision, Refusal)
    assert decision.reason.name == "MOUNT_COLLISION"


@pytest.mark.parametrize(
    ("options", "specs", "text"),
    [
        (
            InjectionOptions(by_name=True, by_name_problem="it is old"),
            SPECS,
            "by name (--cdi-by-name), but",
        ),
        (InjectionOptions(by_name=True), WHOLE_DRIVER, "has files of display, graphics, video"),
        (InjectionOptions({"video", "display"}, True), WHOLE_DRIVER, None),
        (InjectionOptions({"video"}, True), WHOLE_DRIVER, "has files of display, graphics,"),
        (InjectionOptions(by_name=True), Specs(), ": not found"),
    ],
)
def test_by_name_what_the_runtime_would_not_do_right_is_refused(
    options: InjectionOptions, specs: Specs, text: str | None
) -> None:
    decision = decided(options, specs)
    if text is None:
        assert isinstance(decision, Adjustment)
    else:
        assert isinstance(decision, Refusal)
        assert text in decision.text


@pytest.mark.parametrize(
    "version", ["v1.7.30", "1.7.35", "v2.1.0", "v2.4.2", "2.2.1+debian1", "v3.0.0-rc.1"]
)
def test_runtimes_that_inject_cdi_devices_by_name(version: str) -> None:
    assert cdi_by_name_problem("containerd", version) is None


@pytest.mark.parametrize(
    ("runtime", "version", "text"),
    [
        ("containerd", "v1.7.29", "containerd v1.7.29 drops CDI devices that a plugin requests"),
        ("containerd", "v2.0.11", "drops CDI devices"),
        ("containerd", "1.6.40", "drops CDI devices"),
        ("containerd", "edge", "'edge', is not understood"),
        ("containerd", "v2", "is not understood"),
    ],
)
def test_runtimes_that_cannot_inject_cdi_devices_by_name(
    runtime: str, version: str, text: str
) -> None:
    assert text in (cdi_by_name_problem(runtime, version) or "")
