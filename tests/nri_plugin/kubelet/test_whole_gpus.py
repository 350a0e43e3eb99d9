"""The agent as the node's device plugin, over real sockets to a kubelet's device manager."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import uvloop

from gpuslice.contract import names
from nri_plugin.command_line import from_arguments
from nri_plugin.host import device_plugins
from nri_plugin.kubelet.whole_gpus import WholeGpus
from nri_plugin.messages import deviceplugin_pb2 as api
from nri_plugin.policy import gpu_modes, ledger
from nri_plugin.policy.gpu_modes import GpuModes
from nri_plugin.policy.kube_objects import Bound
from nri_plugin.policy.model import Gpu, Pod, Share
from tests.nri_plugin.kubelet.fake_kubelet import FakeKubelet
from tests.nri_plugin.objects import parts
from tests.support import GIB, until_async

GPUS = [Gpu(f"GPU-{n}", n, 8 * GIB, numa=n // 2, link=f"nvlink-{n // 2}") for n in range(4)]


class Agent:
    def __init__(self, kubelet: FakeKubelet, offer: str = "any", kubeconfig: str = "") -> None:
        chosen = from_arguments(["--library", "/lib.so", "--whole-gpus", offer], {})
        self.settings = replace(
            chosen,
            kubelet_dir=kubelet.root,
            device_plugin_dir=kubelet.plugins,
            kubeconfig=kubeconfig,
        )
        agent = parts(self.settings)
        agent.inventory.seen = GPUS
        self.modes, self.ledger = GpuModes(self.settings.whole_gpus), agent.ledger
        self.ledger.is_complete = True
        self.bound, self.metrics = agent.bound_pods, agent.metrics
        self.whole = WholeGpus(agent, self.modes)
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.whole.recover()
        self._running = asyncio.create_task(self.whole.run())

    async def stop(self) -> None:
        assert self._running is not None
        self._running.cancel()
        await asyncio.wait({self._running})

    def share(self, container: str, gpu: Gpu, core_percent: int = 10) -> bool:
        """A container with a share starts, or is refused."""
        if self.modes.objection([gpu.uuid]) is not None:
            return False
        pod = Pod(f"uid-{container}", "default", container)
        given = [Share(gpu.uuid, gpu.minor, GIB, core_percent)]
        hold = ledger.hold(container, container, False, pod, "main", given)
        whole_pod = {gpu.uuid: ledger.Part(GIB, core_percent)}
        return self.ledger.take(hold, GPUS, whole_pod) is None

    def reported(self, uid: str) -> None:
        """The API server has a pod of this UID on this node."""
        self.bound.put(Bound(Pod(uid, "default", uid), "", False, {}), False)


Work = Callable[[FakeKubelet, Agent], Coroutine[Any, Any, None]]


def story(work: Work) -> Callable[[Path], None]:
    """A test on uvloop, as the agent runs, with a kubelet that knows the agent's plugin."""

    async def run(short: Path) -> None:
        kubelet = FakeKubelet(short)
        await kubelet.start()
        agent = Agent(kubelet)
        try:
            await agent.start()
            await until_async(lambda: bool(kubelet.devices))
            await work(kubelet, agent)
        finally:
            await agent.stop()
            await kubelet.stop()

    def test(short: Path) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(short))

    test.__doc__ = work.__doc__
    return test


async def refused(admission: Awaitable[object]) -> str:
    with pytest.raises(grpc.RpcError) as error:
        await admission
    assert isinstance(error.value, grpc.aio.AioRpcError)
    return str(error.value.details())


@story
async def test_the_kubelet_sees_the_gpus_with_their_numa_nodes(
    kubelet: FakeKubelet, _agent: Agent
) -> None:
    (request,) = kubelet.registered
    assert (request.version, request.resource_name) == ("v1beta1", "nvidia.com/gpu")
    assert kubelet.health() == dict.fromkeys((gpu.uuid for gpu in GPUS), True)
    numa = {uuid: [n.ID for n in each.topology.nodes] for uuid, each in kubelet.devices.items()}
    assert numa == {"GPU-0": [0], "GPU-1": [0], "GPU-2": [1], "GPU-3": [1]}


@story
async def test_a_pod_gets_a_gpu_by_cdi_and_keeps_it(kubelet: FakeKubelet, agent: Agent) -> None:
    response = await kubelet.allocate(["GPU-1"])
    assert [each.name for each in response.cdi_devices] == ["nvidia.com/gpu=GPU-1"]
    assert dict(response.envs) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert not agent.share("late", GPUS[1])
    assert agent.share("beside", GPUS[2])
    await until_async(lambda: not kubelet.health()["GPU-2"])
    assert kubelet.health()["GPU-1"]
    text = await refused(kubelet.allocate(["GPU-2"]))
    assert text == "nvidia.com/gpu: GPU-2 cannot be allocated: pods have shares of it"
    assert agent.metrics.whole_refused._value.get() == 1
    agent.ledger.drop("beside")
    await until_async(lambda: kubelet.health()["GPU-2"])
    assert set(await kubelet.preferred(["GPU-0", "GPU-2", "GPU-3"], 2)) == {"GPU-2", "GPU-3"}


@story
async def test_a_kubelet_that_restarts_gets_the_plugin_again(
    kubelet: FakeKubelet, agent: Agent
) -> None:
    """It knows no pod until the API server answers it: the holds stay."""
    agent.reported("uid-1")
    (uuid,) = await kubelet.admit("default/whole", uid="uid-1")
    await until_async(lambda: "default/whole" in agent.modes.pods)
    await kubelet.stop()
    kubelet.knows_pods, kubelet.devices = False, {}
    await kubelet.start()
    await until_async(lambda: len(kubelet.registered) == 2)
    await until_async(lambda: kubelet.health().get(uuid, False))
    await agent.whole._take_over()
    assert not agent.share("late", GPUS[int(uuid[-1])])


@story
async def test_a_restarted_agent_has_the_holds_of_init_containers(
    kubelet: FakeKubelet, _agent: Agent
) -> None:
    """Only the kubelet's record has them, and until the API server has listed the
    node's pods nothing shows whether the record is stale."""
    kubelet.record("uid-1", ["GPU-0"])
    kubelet.record("uid-2", ["GPU-1"])
    kubelet.record("uid-3", ["GPU-2"])
    second = Agent(kubelet, kubeconfig="cluster")
    assert second.modes.objection(["GPU-3"]) is not None, "it is not known yet"
    await second.whole.recover()
    assert second.modes.held == {"GPU-0", "GPU-1", "GPU-2"}
    assert not second.share("late", GPUS[0])
    pod = Pod("uid-share", "default", "share")
    hold = ledger.hold("c", "c", False, pod, "main", [Share("GPU-2", 2, GIB, 10)])
    second.ledger.adopt([hold], frozenset())
    await second.whole._take_over()
    assert second.modes.held == {"GPU-0", "GPU-1"}, "of GPU-2 a share runs: stale"
    second.reported("uid-1")
    second.bound.keep({"uid-1"})
    await second.whole._round()
    assert second.modes.held == {"GPU-0"}
    await second.whole._plugin.stop()


@story
async def test_a_pod_that_ended_frees_its_gpu(kubelet: FakeKubelet, agent: Agent) -> None:
    (uuid,) = await kubelet.admit("default/whole")
    await until_async(lambda: agent.modes.pods == {"default/whole"})
    kubelet.assigned.clear()
    await until_async(lambda: not agent.modes.held)
    assert agent.share("next", GPUS[int(uuid[-1])])


@story
async def test_a_registration_that_the_kubelet_dropped_is_repeated(
    kubelet: FakeKubelet, agent: Agent
) -> None:
    (kubelet.plugins / names.DEVICE_PLUGIN_SOCKET).unlink()
    await until_async(lambda: len(kubelet.registered) == 2)


@story
async def test_beside_another_device_plugin_the_agent_keeps_its_stream(
    kubelet: FakeKubelet, agent: Agent
) -> None:
    """The agent keeps its stream, since the kubelet drops the newest plugin when it ends."""
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(kubelet.plugins / "nvidia-gpu.sock"))
        theirs.listen()
        sign = device_plugins.plugin_sign(kubelet.plugins)
        agent.modes.note("socket", sign, 0)
        assert "nvidia-gpu.sock" in await refused(kubelet.allocate(["GPU-0"]))
        kubelet.devices = {}
        await asyncio.sleep(1.2)
    assert len(kubelet.registered) == 1 and not kubelet.devices
    agent.modes.note("socket", None, gpu_modes.OTHER_GONE_S)
    await until_async(lambda: len(kubelet.registered) == 2 and kubelet.devices)


@story
async def test_of_many_at_once_a_gpu_goes_to_shares_or_whole(
    kubelet: FakeKubelet, agent: Agent
) -> None:
    """The kubelet's calls come by gRPC, shares by the runtime's socket, from threads: for each GPU
    one pod that requests it whole, and two shares, one of them without a limit of compute."""
    loop = asyncio.get_running_loop()
    won: list[tuple[str, str]] = []

    async def share(gpu: Gpu, core_percent: int) -> None:
        if agent.share(f"{gpu.minor}-{core_percent}", gpu, core_percent):
            won.append((gpu.uuid, f"share of {core_percent} percent"))

    async def whole(gpu: Gpu) -> None:
        with contextlib.suppress(grpc.RpcError):
            await kubelet.allocate([gpu.uuid])
            won.append((gpu.uuid, "whole"))

    def caller(call: Callable[[], Coroutine[Any, Any, None]], after_s: float) -> None:
        time.sleep(after_s)
        asyncio.run_coroutine_threadsafe(call(), loop).result(30)

    seen, longest_s = set(), 0.006
    for _ in range(40):
        calls = [
            call
            for gpu in GPUS
            for call in (partial(share, gpu, 10), partial(share, gpu, 0), partial(whole, gpu))
        ]
        threads = [
            # Allocate comes later than a share's call of the same time, by gRPC's duration.
            threading.Thread(
                target=caller,
                args=(call, 0 if call.func is whole else random.uniform(0, longest_s)),
            )
            for call in random.sample(calls, len(calls))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        wholes = sum(what == "whole" for _, what in won)
        factor = 2 if wholes == 0 else 0.5 if wholes == len(GPUS) else 1
        longest_s = min(longest_s * factor, 0.2)  # a busy machine delays one side
        for gpu in GPUS:
            winners = tuple(sorted(what for uuid, what in won if uuid == gpu.uuid))
            assert winners in (("whole",), ("share of 0 percent", "share of 10 percent"))
            seen.add(winners)
            agent.ledger.drop(f"{gpu.minor}-10")
            agent.ledger.drop(f"{gpu.minor}-0")
        won.clear()
        agent.modes._holds.clear()
    assert len(seen) == 2, "both win at times"


def test_the_messages_are_the_kubelets() -> None:
    """Field numbers that kubelet's own definition has and a typing error here would change."""
    response = api.ContainerAllocateResponse(cdi_devices=[api.CDIDevice(name="a")])
    assert response.SerializeToString() == b"\x2a\x03\x0a\x01a"
    device = api.Device(
        ID="G", health="Healthy", topology=api.TopologyInfo(nodes=[api.NUMANode(ID=1)])
    )
    assert device.SerializeToString() == b"\x0a\x01G\x12\x07Healthy\x1a\x04\x0a\x02\x08\x01"
