"""Creations that the agent refuses: the text, and that nothing of them is left."""

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
from tests.nri_plugin.objects import clear
from tests.nri_plugin.service_scene import (
    GRANTS,
    HALF,
    LABEL,
    TOTAL,
    UUID,
    Host,
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
        elsewhere = HALF.replace(UUID, "GPU-elsewhere")
        text = await refused(runtime, pod(allocated=elsewhere), container())
        assert (
            f"invalid value GPU-elsewhere: must be a GPU of this node ({UUID} as minor 0)" in text
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
        host.run.rmdir() if host.run.exists() else None
        host.run.write_text("in the way")
        text = await refused(runtime, pod(allocated=HALF), container())
        assert "the agent cannot create the container's files" in text
        host.run.unlink()
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


async def test_a_creation_that_fails_after_the_ledger_holds_nothing(host: Host) -> None:
    whole = HALF.replace("50", "100")
    async with serving(host.service()) as runtime:
        host.run.write_text("in the way")
        await refused(runtime, pod(0, allocated=whole), container(0))
        host.run.unlink()
        assert await runtime.create(pod(1, allocated=whole), container(1, sandbox=1))
        # Another plugin refused after the agent: undone, reported without our mounts.
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
