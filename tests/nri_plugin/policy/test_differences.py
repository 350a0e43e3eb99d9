"""A plan compared with what the container has: one row for each difference, at each moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from gpuslice.contract import names
from nri_plugin.policy import differences
from nri_plugin.policy import plan as plans
from nri_plugin.policy.merged import Merged, Owners, foreign_gpu
from nri_plugin.policy.model import Device, Hook, HookStage, Mount, Share
from nri_plugin.policy.plan import ContainerPlan
from tests.nri_plugin.objects import planned

ME, OTHER = "50-gpuslice", "60-other"
RUN, STORE = "/run/gpuslice/c1", "/run/gpuslice/.store/abc/libvgpu.so"
SHARES = (Share("GPU-1", 0, 1, 1),)
GPU = Device("/dev/nvidia0", "c", 195, 0, 0o666)
HOOK = Hook(HookStage.CREATE_CONTAINER, "/usr/bin/nvidia-ctk", ("nvidia-ctk",))
PLAN = replace(planned("c1", SHARES), devices=(GPU,), hooks=(HOOK,))
(PRELOAD,) = (each for each in PLAN.mounts if each.destination == names.CONTAINER_PRELOAD)
REST = tuple(each for each in PLAN.mounts if each is not PRELOAD)


def merged(plan: ContainerPlan) -> Merged:
    """The agent's own answer, with the agent as owner."""
    return Merged(
        ME,
        plan.env,
        plan.mounts,
        tuple(device._replace(file_mode=None) for device in plan.devices),
        plan.hooks,
        (),
        Owners(
            env={key: ME for key, _ in plan.env},
            mounts={mount.destination: ME for mount in plan.mounts},
            devices={device.path: ME for device in plan.devices},
            hooks=("10-early", ME),
        ),
    )


WHOLE = merged(PLAN)
VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def owned_by_another(field: str, key: str) -> Merged:
    changes: dict[str, Any] = {field: {**getattr(WHOLE.owners, field), key: OTHER}}
    return replace(WHOLE, owners=replace(WHOLE.owners, **changes))


def with_mounts(*mounts: Mount) -> Merged:
    return replace(WHOLE, mounts=mounts)


AT_VALIDATION: Final[Mapping[str, Merged]] = {
    f"environment {VISIBLE} is 'all' instead of 'GPU-1'": replace(
        WHOLE, env=(*PLAN.env, (VISIBLE, "all"))
    ),
    f"environment {VISIBLE} is None": replace(WHOLE, env=()),
    f"environment {VISIBLE} was set by 60-other": owned_by_another("env", VISIBLE),
    f"environment {VISIBLE} was set by no plugin": replace(
        WHOLE, owners=replace(WHOLE.owners, env={})
    ),
    "mount /etc/ld.so.preload was removed": with_mounts(*REST),
    "mount /etc/ld.so.preload was removed or": with_mounts(
        *PLAN.mounts, PRELOAD._replace(source="/evil", destination="/etc/x/../ld.so.preload")
    ),
    "mount /etc/ld.so.preload has the options bind": with_mounts(
        *REST, PRELOAD._replace(options=("bind",))
    ),
    "mount /etc/ld.so.preload was set by 60-other": owned_by_another(
        "mounts", "/etc/ld.so.preload"
    ),
    "mount /etc hides /etc/ld.so.preload": with_mounts(*PLAN.mounts, Mount("/etc", "/x")),
    "mount /.gpuslice/x hides /.gpuslice": with_mounts(*PLAN.mounts, Mount("/.gpuslice/x", "/x")),
    "device /dev/nvidia0 was removed": replace(WHOLE, devices=()),
    "device /dev/nvidia0 was removed or replaced": replace(WHOLE, devices=(GPU._replace(minor=1),)),
    "device /dev/nvidia0 was set by 60-other": owned_by_another("devices", "/dev/nvidia0"),
    "createContainer hook /usr/bin/nvidia-ctk was removed": replace(WHOLE, hooks=()),
    "createContainer hook /usr/bin/nvidia-ctk was": replace(
        WHOLE, owners=replace(WHOLE.owners, hooks=("10-early",))
    ),
}


@pytest.mark.parametrize("text", AT_VALIDATION)
def test_what_another_plugin_changed(text: str) -> None:
    first = next(differences.in_adjustment(PLAN, AT_VALIDATION[text]))
    assert " ".join(first).startswith(text)


HARMLESS: Final[Mapping[str, Merged]] = {
    "nothing": WHOLE,
    "a variable": replace(WHOLE, env=(*WHOLE.env, ("X", "1"))),
    "a mount": with_mounts(*PLAN.mounts, Mount("/tools", "/opt/tools")),
    "a mount over the visible library": with_mounts(*PLAN.mounts, Mount("/usr/local/vgpu", "/x")),
}


@pytest.mark.parametrize("added", HARMLESS)
def test_what_another_plugin_may_add(added: str) -> None:
    assert not list(differences.in_adjustment(PLAN, HARMLESS[added]))
    assert foreign_gpu(HARMLESS[added]) is None


def without(place: str) -> list[Mount]:
    return [mount for mount in PLAN.mounts if mount.destination != place]


PLACES: Final = sorted(set(PLAN.files) - {plans.GRANT})


@pytest.mark.parametrize("place", PLACES)
def test_a_mount_that_the_created_container_lacks(place: str) -> None:
    for mounts in (without(place), [*without(place), Mount(place, "/elsewhere")]):
        assert not differences.has_mounts(PLAN, mounts)
    assert differences.has_mounts(PLAN, PLAN.mounts)


def test_a_container_that_shares_its_grant_has_preload_lists_of_its_own() -> None:
    shared = planned("pod-u", SHARES, shared=True)
    assert set(shared.preloads.values()) == {"preload.main", "preload-nix.main"}
