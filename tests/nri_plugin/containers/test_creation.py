"""The agent's answer to the creation of a container: files, mounts and the GPU, or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuslice.contract import grant_file, grants
from gpuslice.contract.grants import GpuGrant
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.nri.service import Service
from nri_plugin.policy.kube_objects import Bound
from nri_plugin.policy.model import Pod
from nri_plugin.policy.other_plugins import Sign
from tests.nri_plugin.fake_runtime import FakeRuntime
from tests.nri_plugin.host.test_device_plugins import write
from tests.nri_plugin.service_scene import (
    GRANTS,
    HALF,
    UUID,
    Host,
    as_made,
    container,
    pod,
    refused,
    sandbox,
    serving,
)

pytestmark = pytest.mark.node

NVIDIA = "/usr/bin/nvidia-container-runtime"


async def test_a_grant_becomes_files_mounts_and_the_gpu(host: Host) -> None:
    of = pod(allocated=HALF, grants=GRANTS)
    of.runtime_handler = "runc"
    handler = host.service()
    async with serving(handler) as runtime:
        reply = await runtime.create(of, container())
        assert reply is not None
        adjust = reply.adjust
        places = {m.destination: m.source for m in adjust.mounts}
        assert places["/.gpuslice"] == str(host.run / "c0")
        assert places["/dev/gpu0"] == "/dev/zero"
        assert places["/.gpuslice/libvgpu.so"].startswith(str(host.store))
        env = {e.key: e.value for e in adjust.env}
        assert env["NVIDIA_VISIBLE_DEVICES"] == UUID
        assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == str(5 << 30)
        device = adjust.linux.devices[0]
        assert (device.path, device.major, device.minor) == ("/dev/x", 1, 3)
        assert [hook.path for hook in adjust.hooks.create_container] == ["/bin/true"]
        grant = grant_file.decode((host.run / "c0/grant").read_bytes())
        gpu = grant_file.Gpu(UUID, 5 << 30, 20, 0, context_bytes=512 << 20, code_bytes=64 << 20)
        assert grant == grant_file.Grant(7, (gpu,))
        release = places["/.gpuslice/libvgpu.so"].split("/")[-2]
        given = {"gpus": f"{UUID}:5Gi:20", "library": release[:8], "key": "c0"}
        assert handler.granted("c0") == given
        made = as_made(container(), reply)
        await runtime.notify("RemoveContainer", of, made)
        assert host.keys() == set()
        assert handler.granted("c0") == {}


async def test_grants_get_the_size_of_a_context_as_soon_as_it_is_measured(
    host: Host,
) -> None:
    async with serving(host.service()) as runtime:

        async def granted(number: int) -> int:
            of = pod(number, allocated=HALF, grants=GRANTS)
            await runtime.create(of, container(number, sandbox=number))
            grant = grant_file.decode((host.run / f"c{number}/grant").read_bytes())
            assert grant is not None
            return grant.gpus[0].context_bytes

        assert await granted(0) == 512 << 20, "assumed, and not waited for"
        await host.contexts.measure(host.inventory.gpus)
        assert await granted(1) == 300 << 20


async def test_a_pod_with_rdma_alone_waits_for_nothing_of_ours(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither at its creation, whatever CDI devices it has, nor at its start."""
    of, made = pod(labels={}, allocated='{"rdma":[{"minor":0}]}'), container()
    made.cdi_devices.add(name="example.com/nic=0")
    hangs = threading.Event()
    handler = host.service()
    monkeypatch.setattr(handler.lifecycle, "_start_without_share", None)
    async with serving(handler) as runtime:
        stuck = asyncio.create_task(handler._worker.run(hangs.wait, 60))
        assert await runtime.create(of, made) == nri.CreateContainerResponse()
        await runtime.notify("StartContainer", of, made)
        hangs.set()
        await stuck


async def test_a_share_of_a_gpu_that_another_plugin_gave_to_a_pod_is_refused(
    host: Host, tmp_path: Path
) -> None:
    """The kubelet's record at that moment decides. A pod that is gone holds nothing."""
    host.settings = replace(host.settings, device_plugin_dir=tmp_path)
    handler = host.service()
    bound_pods = handler._parts.bound_pods
    async with serving(handler) as runtime:
        write(tmp_path, {"other": ["GPU-bbbbbbbb-0000-0000-0000-000000000000"]}, "nvidia.com/gpu")
        assert await runtime.create(pod(allocated=HALF), container()) is not None
        write(tmp_path, {"other": [UUID]}, "nvidia.com/gpu")
        of, what = pod(1, allocated=HALF), container(1, sandbox=1)
        text = await refused(runtime, of, what)
        assert "must be a shared GPU; it is assigned whole (nvidia.com/gpu) to pod other" in text
        theirs = Bound(Pod("other", "team", "train"), "", False, {})
        bound_pods.put(theirs, listing=True)
        bound_pods.keep({"other"})
        assert "(nvidia.com/gpu) to team/train" in await refused(runtime, of, what)
        bound_pods.deleted("other")
        assert await runtime.create(of, what) is not None


@pytest.mark.parametrize("listed", [True, False])
async def test_a_share_is_refused_where_selinux_hides_the_files_of_its_limit(
    host: Host, listed: bool
) -> None:
    """containerd labels the sandbox, and the agent's files have no label, as this kernel has no
    SELinux. A container without a share starts."""
    of = pod(allocated=HALF)
    label = "system_u:system_r:container_t:s0"
    sandbox(host.settings.containerd_state, of.id, "runc", selinuxLabel=label)
    handler = host.service()
    async with serving(handler, [of] if listed else []) as runtime:
        assert bool(handler.node.selinux) is listed
        text = await refused(runtime, of, container())
        assert "SELinux labels containers, and the agent's files have no label" in text
        assert host.keys() == set()
        assert await runtime.create(pod(1, labels={}), container(1, sandbox=1)) is not None


def _asks(value: str) -> nri.Container:
    made = container()
    made.env[:] = ["PATH=/bin", f"NVIDIA_VISIBLE_DEVICES={value}"]
    return made


@contextlib.asynccontextmanager
async def _at_nvidias_default(host: Host) -> AsyncIterator[tuple[Service, FakeRuntime]]:
    """The agent looks for other device plugins before it serves."""
    handler = host.service()
    sandbox(host.settings.containerd_state, "sandbox-0", NVIDIA)
    await handler.node.look_for_plugins()
    async with serving(handler) as runtime:
        yield handler, runtime


async def test_nvidias_default_runtime_gives_no_gpus_to_a_container_without_a_share(
    host: Host,
) -> None:
    of = pod(labels={})
    async with _at_nvidias_default(host) as (handler, runtime):
        for value in ("void", "none", ""):
            assert await runtime.create(of, _asks(value)) == nri.CreateContainerResponse()
        for value in ("all", "0", UUID):
            reply = await runtime.create(of, _asks(value))
            assert reply is not None
            written = [(each.key, each.value) for each in reply.adjust.env]
            key = "NVIDIA_VISIBLE_DEVICES"
            assert written == [(f"-{key}", ""), (key, "void")]
            del reply.adjust.env[:]
            assert reply == nri.CreateContainerResponse(adjust=nri.ContainerAdjustment())
        assert handler._parts.metrics.unlimited.labels("nvidia_runtime")._value.get() == 0
        assert handler.node.unprotected == ""
        notice = handler._parts.notices.first()
        assert notice is not None and not notice.warning
        assert "request one, or use a RuntimeClass" in notice.text


async def test_gpus_that_nvidias_runtime_gives_are_counted(host: Host) -> None:
    by_class, privileged, theirs = pod(labels={}), container(), pod(labels={})
    by_class.runtime_handler = "nvidia"
    privileged.linux.resources.devices.add(allow=True, access="rwm")
    async with _at_nvidias_default(host) as (handler, runtime):
        for of, made in ((by_class, _asks("all")), (theirs, privileged)):
            assert await runtime.create(of, made) == nri.CreateContainerResponse()
        handler.node.modes.note("socket", Sign("a device plugin listens"), 0.0)
        assert await runtime.create(theirs, _asks("all")) == nri.CreateContainerResponse()
        assert handler._parts.metrics.unlimited.labels("nvidia_runtime")._value.get() == 3


@pytest.mark.parametrize("looked", [True, False])
async def test_while_it_is_not_known_which_gpus_are_held_nothing_is_overridden(
    host: Host, looked: bool
) -> None:
    """The container may be of a pod to which the kubelet assigned a GPU, or which another device
    plugin serves."""
    handler = host.service()
    sandbox(host.settings.containerd_state, "sandbox-0", NVIDIA)
    if looked:
        await handler.node.look_for_plugins()
        handler.node.modes.unknown = "the kubelet's record cannot be read"
    async with serving(handler) as runtime:
        assert await runtime.create(pod(labels={}), _asks("all")) == nri.CreateContainerResponse()


@pytest.mark.parametrize(
    ("default", "handler", "visible"),
    [
        ("/usr/bin/runc", "", "0"),
        (NVIDIA, "", "void"),
        (NVIDIA, "runc", "0"),
        ("/usr/bin/runc", "nvidia", "void"),
        ("", "", "void"),
    ],
    ids=["runc", "nvidia", "runc-by-handler", "nvidia-by-handler", "unknown"],
)
async def test_variables_of_a_grant_in_the_container(
    host: Host, default: str, handler: str, visible: str
) -> None:
    """NVIDIA's runtime would inject the GPU once more, and an index as NVML's."""
    granted = {"main": [GpuGrant(UUID, 0, 5 << 30, 20)]}
    variables = {"main": {"VOLCANO_GPU_ALLOCATED": "5120"}}
    of = pod(allocated=HALF, grants=grants.encode(granted, variables, "index"))
    of.runtime_handler = handler
    state = host.settings.containerd_state
    if default:
        sandbox(state, of.id, default)
    async with serving(host.service()) as runtime:
        if handler:  # the default shows in another pod's sandbox
            sandbox(state, "sandbox-1", default)
            await runtime.create(pod(1, {}), container(1, sandbox=1))
        reply = await runtime.create(of, container())
        assert reply is not None
        env = {each.key: each.value for each in reply.adjust.env}
        assert env["VOLCANO_GPU_ALLOCATED"] == "5120"
        assert env["NVIDIA_VISIBLE_DEVICES"] == visible
