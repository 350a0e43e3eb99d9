"""Creations that the agent refuses: the text, and that nothing of them is left; and the checks
after a creation: at validation, and at the container's start."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from dataclasses import replace

import pytest

from nri_plugin.host.files import RunDirectory
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.policy.gpu_modes import Assigned, Offer
from tests.nri_plugin.fake_runtime import RequestFailed
from tests.nri_plugin.objects import clear
from tests.nri_plugin.service_scene import (
    GRANTS,
    HALF,
    LABEL,
    TOTAL,
    UUID,
    Host,
    as_made,
    container,
    pod,
    refused,
    serving,
)

pytestmark = pytest.mark.node


async def test_of_a_gpu_that_a_pod_holds_whole_no_share_is_given(host: Host) -> None:
    """It is not known until the kubelet has reported its pods. The kubelet retries."""
    host.settings = replace(host.settings, whole_gpus=Offer(any=True))
    service = host.service()
    modes, share = service.node.modes, pod(allocated=HALF, grants=GRANTS)
    async with serving(service) as runtime:
        text = await refused(runtime, share, container())
        assert "the agent cannot list the GPUs that are assigned whole to pods: " in text
        modes.assigned(Assigned({UUID: "team/whole"}, {}), frozenset(), 0)
        text = await refused(runtime, share, container())
        wanted = f"invalid value {UUID}: must be a shared GPU; it is assigned whole"
        assert f"{wanted} (nvidia.com/gpu) to team/whole" in text
        assert host.keys() == set()
        beside = await runtime.create(share, container(1, "sidecar"))
        assert beside is not None and not beside.adjust.mounts
        whole = container(2, sandbox=1)
        node = nri.LinuxDevice(path="/dev/nvidia0", type="c", major=195, minor=0)
        whole.linux.devices.append(node)
        untouched = await runtime.create(pod(1, {}), whole)
        assert untouched == nri.CreateContainerResponse(), "the runtime gave it the GPU"
        modes.assigned(Assigned({}, {}), frozenset(), 0)
        assert await runtime.create(share, container()) is not None


async def test_refusals_name_pod_container_field_and_value(host: Host) -> None:
    potatoes = HALF.replace('"50"', '"12 potatoes"', 1)
    async with serving(host.service()) as runtime:
        text = await refused(runtime, pod(allocated=potatoes), container())
        assert text == (
            'gpuslice refuses container "main" of pod team/train-0: annotation'
            " scheduling.koordinator.sh/device-allocated:"
            " gpu[0].resources.koordinator.sh/gpu-core: invalid value '12 potatoes': must be a"
            " quantity such as 50, 11520Mi or 12Gi; delete the pod to reschedule it"
        )
        long = await refused(runtime, pod(labels={LABEL: "x" * 9999}, allocated=HALF), container())
        assert len(long) == 2000
        # The next container is not affected.
        assert await runtime.create(pod(allocated=HALF), container()) is not None


async def test_what_is_missing_on_the_node_refuses_until_it_is_there(host: Host) -> None:
    async with serving(host.service()) as runtime:
        host.library.unlink()
        text = await refused(runtime, pod(allocated=HALF), container())
        assert f"the library is missing on this node: {host.library}: No such file" in text
        host.library.write_bytes(b"\x7fELF")
        (host.cdi / "gpu.json").rename(host.cdi / "gpu.gone")
        text = await refused(runtime, pod(allocated=HALF), container())
        assert f"CDI device nvidia.com/gpu={UUID}: not found" in text
        (host.cdi / "gpu.gone").rename(host.cdi / "gpu.json")
        reply = await runtime.create(pod(allocated=HALF), container())
        assert reply is not None
        assert host.keys() == {"pod-uid-0"}


@pytest.mark.parametrize(
    ("gpus", "problem"),
    [
        ({"exit": "NVML: no"}, "the agent cannot list this node's GPUs: NVML: no"),
        (
            {"gpus": [{"uuid": UUID, "minor": 0, "memory_bytes": TOTAL, "problem": "reset it"}]},
            f"gpu[0]: invalid value {UUID}: must be a healthy GPU: reset it; delete",
        ),
    ],
)
async def test_gpus_that_are_not_known_or_unhealthy(
    host: Host, gpus: dict[str, object], problem: str
) -> None:
    async with serving(host.service(json.dumps(gpus))) as runtime:
        assert problem in await refused(runtime, pod(allocated=HALF), container())
        assert host.keys() == set()


async def test_a_creation_that_another_plugin_refused_after_the_agent_holds_nothing(
    host: Host,
) -> None:
    """It is undone, and reported without our mounts."""
    whole = HALF.replace("50", "100")
    async with serving(host.service()) as runtime:
        assert await runtime.create(pod(1, allocated=whole), container(1, sandbox=1))
        await runtime.stop(pod(1), container(1, sandbox=1))
        await runtime.notify("RemoveContainer", pod(1), container(1, sandbox=1))
        assert host.keys() == set()
        assert await runtime.create(pod(2, allocated=whole), container(2, sandbox=2))


async def test_a_step_that_is_late_is_refused_by_its_name(host: Host) -> None:
    """The share is released, and files that are made too late are removed."""
    free = threading.Event()
    handler = host.service()
    async with serving(handler) as runtime:
        await host.inventory.refresh()
        stuck = asyncio.create_task(handler._worker.run(free.wait, 60))
        made = container(0)
        handler.lifecycle._settings = replace(host.settings, work_deadline_s=1.0)
        text = await refused(runtime, pod(allocated=HALF), made)
        assert "the node took too long to make the container's files" in text
        assert not handler.records.ledger.holds()
        free.set()
        await stuck
        await handler._worker.run(lambda: None, 60)
        assert not (host.settings.run_dir / made.id).exists()


def test_a_full_run_directory_refuses_and_leaves_nothing(host: Host) -> None:
    """The host's /run, a tmpfs, has no space for one more directory."""
    host.run.mkdir()
    size = ["-o", "size=4k,nr_inodes=2"]
    subprocess.run(["mount", "-t", "tmpfs", *size, "tmpfs", host.run], check=True)
    try:
        (host.run / ".lock").touch()

        async def work() -> None:
            handler = host.service()
            async with serving(handler) as runtime:
                text = await refused(runtime, pod(allocated=HALF), container())
                assert "the agent cannot create the container's files" in text
                assert f"{host.run}/pod-uid-0: No space left on device" in text
                assert host.keys() == {".lock"} and not handler.records.ledger.holds()
                (host.run / ".lock").unlink()
                assert await runtime.create(pod(allocated=HALF), container()) is not None
                clear(RunDirectory(host.run, lambda: 1))

        asyncio.run(work())
    finally:
        subprocess.run(["umount", host.run], check=True)


# --- after the creation


@pytest.mark.parametrize("nri_version", [(0, 11, 0), (0, 12, 5)])
async def test_a_container_that_was_not_adjusted_does_not_start(
    host: Host, nri_version: tuple[int, int, int]
) -> None:
    async with serving(host.service(), nri_version=nri_version) as runtime:
        with pytest.raises(RequestFailed, match="without this agent"):
            await runtime.notify("StartContainer", pod(allocated=HALF), container())
        made = container()
        made.mounts.add(destination="/.gpuslice", source=str(host.run / "c0"))
        with pytest.raises(RequestFailed, match="without this agent"):
            await runtime.notify("StartContainer", pod(allocated=HALF), made)


async def test_a_container_that_cannot_be_examined_does_not_start(host: Host) -> None:
    async with serving(host.service()) as runtime:
        made = as_made(container(), await runtime.create(pod(allocated=HALF), container()))
        with pytest.raises(RequestFailed, match="cannot examine the container's root file system"):
            await runtime.notify("StartContainer", pod(allocated=HALF), made)


async def test_validation_rejects_changes_of_other_plugins(host: Host) -> None:
    of = pod(allocated=HALF, grants=GRANTS)
    handler = host.service()
    async with serving(handler) as runtime:
        ours = await runtime.create(of, container())
        assert ours is not None

        async def verdict(
            adjust: nri.ContainerAdjustment,
            what: nri.Container,
            pod: nri.PodSandbox = of,
            theirs: nri.ContainerAdjustment | None = None,
        ) -> str:
            request = nri.ValidateContainerAdjustmentRequest(pod=pod, container=what, adjust=adjust)
            runtime.claim(request)
            if theirs is not None:
                request.adjust.MergeFrom(theirs)
                runtime.claim(request, "60-other")
            method, reply = "ValidateContainerAdjustment", nri.ValidateContainerAdjustmentResponse
            answer = await runtime.call(method, request, reply)
            assert answer.reject == bool(answer.reason)
            return answer.reason

        assert await verdict(ours.adjust, container()) == ""
        without = nri.ContainerAdjustment()
        without.CopyFrom(ours.adjust)
        del without.mounts[:]
        changed = "another NRI plugin changed the agent's adjustment: mount"
        assert changed in await verdict(without, container())
        nothing = nri.ContainerAdjustment()
        same = await verdict(nothing, container(), theirs=ours.adjust)
        assert same == "", "another plugin's, with the same limits"
        assert "without this agent" in await verdict(nothing, container(9))
        web = pod(1, labels={})
        assert await verdict(nothing, container(9), web) == ""
        assert await verdict(nothing, container(9, "sidecar")) == ""
        gpu = nri.ContainerAdjustment()
        gpu.linux.devices.add(path="/dev/nvidia1", type="c", major=195)
        brought = "NRI plugin 60-other injected a GPU by device /dev/nvidia1"
        assert await verdict(nothing, container(9), web, gpu) == ""
        assert await verdict(nothing, container(9, "sidecar"), of, gpu) == ""
        counted = handler._parts.metrics.unlimited.labels("nri_plugin")
        assert counted._value.get() == 2
        assert brought in await verdict(ours.adjust, container(), of, gpu)
        removal = nri.ContainerAdjustment()
        removal.linux.devices.add(path="-/dev/nvidia0")
        assert await verdict(nothing, container(9), web, removal) == ""
