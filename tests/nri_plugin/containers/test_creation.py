"""The agent's answer to the creation of a container: files, mounts and the GPU, or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from gpuslice.contract import grant_file, grants, names
from gpuslice.contract.grants import GpuGrant
from nri_plugin.host.rootfs import Examination
from nri_plugin.host.verifier import Verifier
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.nri.service import Service
from nri_plugin.policy import kube_objects
from nri_plugin.policy.front_ends import FrontEnds
from nri_plugin.policy.kube_objects import Bound
from nri_plugin.policy.model import Claim, Gpu, Pod, Share
from nri_plugin.policy.other_plugins import Sign
from tests.nri_plugin.fake_runtime import FakeRuntime, RequestFailed
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

RUNC, NVIDIA = "/usr/bin/runc", "/usr/bin/nvidia-container-runtime"
UNCHANGED = nri.CreateContainerResponse()
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
VOID = [nri.KeyValue(key=f"-{VISIBLE}"), nri.KeyValue(key=VISIBLE, value="void")]


def env(reply: nri.CreateContainerResponse | None) -> dict[str, str]:
    assert reply is not None
    return {each.key: each.value for each in reply.adjust.env}


def read_grant(host: Host, key: str) -> grant_file.Grant:
    grant = grant_file.decode((host.run / key / "grant").read_bytes())
    assert grant is not None
    return grant


async def test_a_grant_becomes_files_mounts_and_the_gpu(host: Host) -> None:
    of, handler = pod(allocated=HALF, grants=GRANTS), host.service()
    of.runtime_handler = "runc"
    async with serving(handler) as runtime:
        reply = await runtime.create(of, container())
        variables = env(reply)
        assert reply is not None
        places = {m.destination: m.source for m in reply.adjust.mounts}
        assert places["/.gpuslice"] == str(host.run / "c0")
        assert places["/dev/gpu0"] == "/dev/zero"
        assert places["/.gpuslice/libvgpu.so"].startswith(str(host.store))
        assert variables[VISIBLE] == UUID
        assert variables["CUDA_DEVICE_MEMORY_LIMIT_0"] == str(5 << 30)
        device = reply.adjust.linux.devices[0]
        assert (device.path, device.major, device.minor) == ("/dev/x", 1, 3)
        assert [hook.path for hook in reply.adjust.hooks.create_container] == ["/bin/true"]
        gpu = grant_file.Gpu(UUID, 5 << 30, 20, 0, context_bytes=512 << 20, code_bytes=64 << 20)
        assert read_grant(host, "c0") == grant_file.Grant(7, (gpu,))
        release = places["/.gpuslice/libvgpu.so"].split("/")[-2]
        given = {"gpus": f"{UUID}:5Gi:20", "policy": "fair", "library": release[:8], "key": "c0"}
        assert handler.granted("c0") == given
        await runtime.notify("RemoveContainer", of, as_made(container(), reply))
        assert host.keys() == set() and handler.granted("c0") == {}


async def test_grants_get_the_size_of_a_context_as_soon_as_it_is_measured(host: Host) -> None:
    async with serving(host.service()) as runtime:
        for number, context_bytes in enumerate((512 << 20, 300 << 20)):
            of = pod(number, allocated=HALF, grants=GRANTS)
            await runtime.create(of, container(number, sandbox=number))
            assert read_grant(host, f"c{number}").gpus[0].context_bytes == context_bytes
            # The first context's size was assumed, because no creation waits for a measurement.
            await host.contexts.measure(host.inventory.gpus)


class Claims(FrontEnds):
    """A claim source by which the container "main" of each pod has a share."""

    def may_claim(self, pod: Any, cdi_names: Iterable[str]) -> bool:
        return True

    def has_shares(self, pod: Pod) -> bool:
        return True

    def claim(
        self, pod: Pod, container: str, cdi_names: Iterable[str], gpus: Sequence[Gpu]
    ) -> Claim | None:
        share = Share(UUID, 0, 5 << 30, 0)
        taken = Claim([share], shared=True, allocated=[share], key="claim-u_a")
        return taken if container == "main" else Claim()

    def is_uncapped(self, pod: Pod, uuid: str, minor: int, core_percent: int) -> bool:
        return False


async def test_a_claim_of_any_source_becomes_a_share(host: Host) -> None:
    handler, of = Service(replace(host.parts(), claims=Claims())), pod(labels={})
    of.runtime_handler = "runc"
    async with serving(handler) as runtime:
        await host.inventory.refresh()
        seen = env(await runtime.create(of, container()))
        assert (seen[VISIBLE], seen[names.ENV_CORE_LIMIT]) == (UUID, "100")
        gpus = [(gpu.uuid, gpu.limit_bytes) for gpu in read_grant(host, "claim-u_a").gpus]
        assert gpus == [(UUID, 5 << 30)]
        assert env(await runtime.create(of, container(1, "beside")))[VISIBLE] == "void"
        assert handler._parts.notices.first() is None, "its pod has it so"
        assert [each.container_key for each in handler._parts.ledger.holds()] == [
            "team/train-0/main"
        ]


async def test_an_event_names_the_driver_capabilities_that_are_cut(host: Host) -> None:
    made, handler = container(), host.service()
    made.env.append("NVIDIA_DRIVER_CAPABILITIES=compute,video")
    async with serving(handler) as runtime:
        await runtime.create(pod(allocated=HALF), made)
    notice = handler._parts.notices.first()
    assert notice is not None
    text = 'container "main": driver capabilities cut: video: they are not injected'
    assert notice.text.startswith(text)
    event = kube_objects.event(notice, notice.text, "node-1", "", "name", "at")
    assert (event["reason"], event["type"]) == (names.EVENT_CAPABILITIES_CUT, "Normal")


async def test_a_container_with_another_plugins_gpu_does_not_start(host: Host) -> None:
    """NRI before 0.10 shows the agent other plugins' adjustments only in the created container."""
    of = pod(allocated=HALF)
    async with serving(host.service()) as runtime:
        given = container()
        given.cdi_devices.add(name=f"{names.CDI_KIND}={UUID}")
        assert f"(CDI device {names.CDI_KIND}={UUID})" in await refused(runtime, of, given)
        made = as_made(container(), await runtime.create(of, container()))
        made.linux.devices.add(path="/dev/fuse", type="c", major=10, minor=229)
        made.linux.devices.add(path="/dev/nvidia7", type="c", major=195, minor=7)
        with pytest.raises(RequestFailed, match="injected a GPU by device /dev/nvidia7"):
            await runtime.notify("StartContainer", of, made)


async def test_what_can_evade_a_limit_is_reported_or_refused(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreached = Examination({}, "it is static", (0, 0))
    monkeypatch.setattr(Verifier, "examine", AsyncMock(return_value=unreached))
    monkeypatch.setattr(Verifier, "strong_beside", AsyncMock(return_value="SYS_ADMIN"))
    of, handler = pod(allocated=HALF, grants=GRANTS), host.service()
    notices = handler._parts.notices
    async with serving(handler) as runtime:
        made = as_made(container(), await runtime.create(of, container()))
        problems = {"may not reach it: it is static": made, "SYS_ADMIN": container(1, "sidecar")}
        for problem, what in problems.items():
            await runtime.notify("StartContainer", of, what)
            notice = notices.first()
            assert notice is not None and notice.warning and problem in notice.text
            notices.done(notice)
        handler.lifecycle._settings = replace(host.settings, refuse_unenforceable=True)
        with pytest.raises(RequestFailed, match="it is static"):
            await runtime.notify("StartContainer", of, made)


async def test_rdma_alone_waits_for_nothing(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A container with only RDMA and CDI devices waits for no work of the agent's thread."""
    of, made = pod(labels={}, allocated='{"rdma":[{"minor":0}]}'), container()
    made.cdi_devices.add(name="example.com/nic=0")
    hangs = threading.Event()
    handler = host.service()
    monkeypatch.setattr(handler.lifecycle, "_start_without_share", None)
    async with serving(handler) as runtime:
        stuck = asyncio.create_task(handler._worker.run(hangs.wait, 60))
        assert await runtime.create(of, made) == UNCHANGED
        await runtime.notify("StartContainer", of, made)
        hangs.set()
        await stuck
    assert caplog.messages == []


async def test_a_share_of_another_plugins_gpu_is_refused(host: Host, tmp_path: Path) -> None:
    """The kubelet's record at the creation decides. A pod that no longer exists holds nothing."""
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
    """containerd has given the sandbox an SELinux label. The agent's files have none here."""
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
    made.env[:] = ["PATH=/bin", f"{VISIBLE}={value}"]
    return made


@contextlib.asynccontextmanager
async def _at_nvidias_default(
    host: Host, looked: bool = True, unknown: str = ""
) -> AsyncIterator[tuple[Service, FakeRuntime]]:
    """Yield an agent on a node whose default runtime is NVIDIA's. looked: whether the agent has
    looked for other device plugins. unknown: why the agent does not know which GPUs are held."""
    handler = host.service()
    sandbox(host.settings.containerd_state, "sandbox-0", NVIDIA)
    if looked:
        await handler.node.look_for_plugins()
        handler.node.modes.unknown = unknown
    async with serving(handler) as runtime:
        yield handler, runtime


async def test_nvidias_default_runtime_gives_no_gpus_without_a_share(host: Host) -> None:
    of = pod(labels={})
    async with _at_nvidias_default(host) as (handler, runtime):
        for value in ("void", "none", ""):
            assert await runtime.create(of, _asks(value)) == UNCHANGED
        for value in ("all", "0", UUID):
            adjusted = nri.CreateContainerResponse(adjust=nri.ContainerAdjustment(env=VOID))
            assert await runtime.create(of, _asks(value)) == adjusted
        given = handler._parts.metrics.unlimited.labels("nvidia_runtime")._value
        assert (given.get(), handler.node.unprotected) == (0, "")
        notice = handler._parts.notices.first()
        assert notice is not None and not notice.warning
        assert "request one, or use a RuntimeClass" in notice.text
        by_class, privileged = pod(labels={}), container()
        by_class.runtime_handler = "nvidia"
        privileged.linux.resources.devices.add(allow=True, access="rwm")
        for pod_, made in ((by_class, _asks("all")), (of, privileged)):
            assert await runtime.create(pod_, made) == UNCHANGED
        handler.node.modes.note("socket", Sign("a device plugin listens"), 0.0)
        assert await runtime.create(of, _asks("all")) == UNCHANGED
        assert given.get() == 3, "what the runtime gives is counted"


@pytest.mark.parametrize("looked", [True, False])
async def test_while_held_gpus_are_not_known_nothing_is_changed(host: Host, looked: bool) -> None:
    """The kubelet may have given this pod a GPU, or another device plugin may serve the pod."""
    why = "the kubelet's record cannot be read"
    async with _at_nvidias_default(host, looked, why) as (_, runtime):
        assert await runtime.create(pod(labels={}), _asks("all")) == UNCHANGED


@pytest.mark.parametrize(
    ("default", "handler", "visible"),
    [
        (RUNC, "", "0"),
        (NVIDIA, "", "void"),
        (NVIDIA, "runc", "0"),
        (RUNC, "nvidia", "void"),
        ("", "", "void"),
    ],
)
async def test_a_grants_variables(host: Host, default: str, handler: str, visible: str) -> None:
    """NVIDIA's runtime would inject a GPU that NVIDIA_VISIBLE_DEVICES names, and would read the
    grant's index as NVML's index. Therefore a container that it runs gets `void`."""
    granted = {"main": [GpuGrant(UUID, 0, 5 << 30, 20)]}
    variables = {"main": {"VOLCANO_GPU_ALLOCATED": "5120"}}
    of = pod(allocated=HALF, grants=grants.encode(granted, variables, "index"))
    of.runtime_handler, state = handler, host.settings.containerd_state
    if default:
        sandbox(state, of.id, default)
    async with serving(host.service()) as runtime:
        if handler:  # the agent learns the node's default runtime from another pod's sandbox
            sandbox(state, "sandbox-1", default)
            await runtime.create(pod(1, {}), container(1, sandbox=1))
        given = env(await runtime.create(of, container()))
        assert given["VOLCANO_GPU_ALLOCATED"] == "5120"
        assert given[VISIBLE] == visible
