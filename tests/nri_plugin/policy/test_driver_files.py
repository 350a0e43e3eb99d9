"""GPU injection: the driver's files that the operator allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from contract import names
from nri_plugin.policy.model import (
    Adjustment,
    CdiDevice,
    Device,
    Edits,
    InjectionOptions,
    Mount,
    Specs,
)
from tests.nri_plugin import objects
from tests.nri_plugin.policy.pod_policy_scene import (
    HALF,
    LIBCUDA,
    MAIN,
    PATHS,
    A,
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
