"""The agent as the node's device plugin, over real sockets to a kubelet's device manager."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import grpc
import pytest
import uvloop

from gpuslice.contract import names
from nri_plugin.command_line import from_arguments
from nri_plugin.host import device_plugins
from nri_plugin.kubelet import whole_gpus
from nri_plugin.kubelet.whole_gpus import WholeGpus
from nri_plugin.messages import deviceplugin_pb2 as api
from nri_plugin.policy import gpu_modes, ledger
from nri_plugin.policy.gpu_modes import GpuModes
from nri_plugin.policy.kube_objects import Bound
from nri_plugin.policy.model import Gpu, Pod, Share
from tests.nri_plugin.kubelet.fake_kubelet import FakeKubelet
from tests.nri_plugin.objects import parts
from tests.support import GIB, Clock, until_async

GPUS = [Gpu(f"GPU-{n}", n, 8 * GIB, numa=n // 2, link=f"nvlink-{n // 2}") for n in range(4)]


class Agent:
    def __init__(self, kubelet: FakeKubelet, kubeconfig: str = "") -> None:
        chosen = from_arguments(["--library", "/lib.so", "--whole-gpus", "any"], {})
        chosen = replace(chosen, kubelet_dir=kubelet.root, device_plugin_dir=kubelet.plugins)
        agent = parts(replace(chosen, kubeconfig=kubeconfig))
        agent.inventory.seen = GPUS
        self.modes, self.ledger = GpuModes(chosen.whole_gpus), agent.ledger
        self.ledger.is_complete = True
        self.bound, self.metrics = agent.bound_pods, agent.metrics
        self.whole = WholeGpus(agent, self.modes)

    @asynccontextmanager
    async def running(self, kubelet: FakeKubelet) -> AsyncIterator[Agent]:
        """Run the agent's plugin, and wait until the kubelet has registered it."""
        await kubelet.start()
        await self.whole.recover()
        running = asyncio.create_task(self.whole.run())
        try:
            await until_async(lambda: bool(kubelet.devices))
            yield self
        finally:
            running.cancel()
            await asyncio.wait({running})
            await kubelet.stop()

    def share(self, container: str, gpu: Gpu, core_percent: int = 10) -> bool:
        """Start a container with a share, and return whether the agent allows it."""
        if self.modes.objection([gpu.uuid]) is not None:
            return False
        whole_pod = {gpu.uuid: ledger.Part(GIB, core_percent)}
        return self.ledger.take(hold(container, gpu, core_percent), GPUS, whole_pod) is None

    def reported(self, uid: str) -> None:
        """Report a pod of this UID on this node to the agent, as the API server would."""
        self.bound.put(Bound(Pod(uid, "default", uid), "", False, {}), False)


def hold(container: str, gpu: Gpu, core_percent: int = 10) -> ledger.Hold:
    pod = Pod(f"uid-{container}", "default", container)
    share = Share(gpu.uuid, gpu.minor, GIB, core_percent)
    return ledger.hold(container, container, pod, "main", [share])


@pytest.fixture(autouse=True)
def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    return uvloop.new_event_loop


@pytest.fixture
def kubelet(short: Path) -> FakeKubelet:
    return FakeKubelet(short)


@pytest.fixture
def agent(kubelet: FakeKubelet) -> AbstractAsyncContextManager[Agent]:
    return Agent(kubelet).running(kubelet)


async def refused(admission: Awaitable[object]) -> str:
    with pytest.raises(grpc.RpcError) as error:
        await admission
    assert isinstance(error.value, grpc.aio.AioRpcError)
    return str(error.value.details())


async def test_a_pod_holds_a_gpu_to_its_end(kubelet: FakeKubelet, agent: Agent) -> None:
    (request,) = kubelet.registered
    assert (request.version, request.resource_name) == ("v1beta1", "nvidia.com/gpu")
    assert request.options.get_preferred_allocation_available
    assert kubelet.health() == dict.fromkeys((gpu.uuid for gpu in GPUS), True)
    numa = {uuid: [n.ID for n in each.topology.nodes] for uuid, each in kubelet.devices.items()}
    assert numa == {"GPU-0": [0], "GPU-1": [0], "GPU-2": [1], "GPU-3": [1]}
    response = await kubelet.allocate(["GPU-1"])
    assert [each.name for each in response.cdi_devices] == ["nvidia.com/gpu=GPU-1"]
    assert dict(response.envs) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert not agent.share("late", GPUS[1])
    assert agent.share("beside", GPUS[2])
    await until_async(lambda: not kubelet.health()["GPU-2"])
    assert kubelet.health()["GPU-1"]
    assert "pods have shares of it" in await refused(kubelet.allocate(["GPU-2"]))
    assert agent.metrics.whole_refused._value.get() == 1
    agent.ledger.drop("beside")
    await until_async(lambda: kubelet.health()["GPU-2"])
    assert set(await kubelet.preferred(["GPU-0", "GPU-2", "GPU-3"], 2)) == {"GPU-2", "GPU-3"}
    (uuid,) = await kubelet.admit("default/whole")
    await until_async(lambda: agent.modes.pods == {"default/whole"})
    kubelet.assigned.clear()
    await until_async(lambda: uuid not in agent.modes.held)
    assert agent.share("next", GPUS[int(uuid[-1])])


async def test_a_kubelet_that_lost_the_plugin_gets_it(kubelet: FakeKubelet, agent: Agent) -> None:
    """The plugin registers again when the kubelet restarts and when its socket vanishes. The
    restarted kubelet lists no pods yet, but the agent keeps their GPUs."""
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
    (kubelet.plugins / names.DEVICE_PLUGIN_SOCKET).unlink()
    await until_async(lambda: len(kubelet.registered) == 3)


async def test_registrations_with_one_kubelet_are_apart(
    kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The agent registers with another kubelet at once."""
    clock, register = Clock(), AsyncMock(side_effect=OSError("no"))
    monkeypatch.setattr(whole_gpus, "time", Mock(monotonic=clock))
    agent = Agent(kubelet)
    monkeypatch.setattr(agent.whole._plugin, "register", register)
    for later_s, version, registered in ((0, 1, 1), (4, 1, 1), (0, 2, 2), (4, 2, 2), (1, 2, 3)):
        clock.seconds += later_s
        monkeypatch.setattr(whole_gpus, "version", Mock(return_value=version))
        await agent.whole._stay_registered()
        assert register.await_count == registered
    assert caplog.text.count("not registered with the kubelet: no") == 1


async def test_init_containers_hold_gpus_over_a_restart(kubelet: FakeKubelet, agent: Agent) -> None:
    """Only the kubelet's record lists the GPUs of init containers. An entry of the record is stale
    if the API server has no such pod."""
    for number in range(3):
        kubelet.record(f"uid-{number}", [f"GPU-{number}"])
    second = Agent(kubelet, kubeconfig="cluster")
    assert second.modes.objection(["GPU-3"]) is not None, "it is not known yet"
    await second.whole.recover()
    assert second.modes.held == {"GPU-0", "GPU-1", "GPU-2"}
    assert not second.share("late", GPUS[0])
    second.ledger.adopt([hold("share", GPUS[2])], frozenset())
    await second.whole._take_over()
    assert second.modes.held == {"GPU-0", "GPU-1"}, "of GPU-2 a share runs: stale"
    second.reported("uid-0")
    second.bound.keep({"uid-0"})
    await second.whole._round()
    assert second.modes.held == {"GPU-0"}
    await second.whole._plugin.stop()


async def test_beside_another_plugin_the_stream_stays(kubelet: FakeKubelet, agent: Agent) -> None:
    """When a plugin's stream ends, the kubelet drops the plugin that registered last for the
    resource. That may be the other plugin. Therefore the agent keeps its stream open."""
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(kubelet.plugins / "nvidia-gpu.sock"))
        theirs.listen()
        agent.modes.note("socket", device_plugins.plugin_sign(kubelet.plugins), 0)
        assert "nvidia-gpu.sock" in await refused(kubelet.allocate(["GPU-0"]))
        kubelet.devices = {}
        await asyncio.sleep(1.2)
    assert len(kubelet.registered) == 1 and not kubelet.devices
    agent.modes.note("socket", None, gpu_modes.OTHER_GONE_S)
    await until_async(lambda: len(kubelet.registered) == 2 and kubelet.devices)


async def test_each_gpu_goes_whole_to_a_pod_or_to_shares(
    kubelet: FakeKubelet, agent: Agent
) -> None:
    """A pod requests a whole GPU while two containers request shares of that GPU, one of them
    without a compute limit. Either the pod or both containers succeed."""
    won: list[tuple[str, str]] = []

    async def share(gpu: Gpu, core_percent: int, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if agent.share(f"{gpu.minor}-{core_percent}", gpu, core_percent):
            won.append((gpu.uuid, f"share of {core_percent} percent"))

    async def whole(gpu: Gpu) -> None:
        with contextlib.suppress(grpc.RpcError):
            await kubelet.allocate([gpu.uuid])
            won.append((gpu.uuid, "whole"))

    seen, longest_s = set(), 0.006
    for _ in range(40):
        # An Allocate takes longer to arrive than a share's call. So shares start at random delays.
        both = [(gpu, core_percent) for gpu in GPUS for core_percent in (10, 0)]
        calls = [share(*each, random.uniform(0, longest_s)) for each in both]
        calls += [whole(gpu) for gpu in GPUS]
        await asyncio.gather(*random.sample(calls, len(calls)))
        wholes = sum(what == "whole" for _, what in won)
        factor = 2 if wholes == 0 else 0.5 if wholes == len(GPUS) else 1
        # Adapt the delays to the machine, so that neither side always wins.
        longest_s = min(longest_s * factor, 0.2)
        for gpu in GPUS:
            winners = tuple(sorted(what for uuid, what in won if uuid == gpu.uuid))
            assert winners in (("whole",), ("share of 0 percent", "share of 10 percent"))
            seen.add(winners)
        for gpu, core_percent in both:
            agent.ledger.drop(f"{gpu.minor}-{core_percent}")
        won.clear()
        agent.modes._holds.clear()
    assert len(seen) == 2, "both win at times"


def test_the_messages_are_the_kubelets() -> None:
    """Our messages must have the field numbers of the kubelet's own definition."""
    response = api.ContainerAllocateResponse(cdi_devices=[api.CDIDevice(name="a")])
    assert response.SerializeToString() == b"\x2a\x03\x0a\x01a"
    topology = api.TopologyInfo(nodes=[api.NUMANode(ID=1)])
    device = api.Device(ID="G", health="Healthy", topology=topology)
    assert device.SerializeToString() == b"\x0a\x01G\x12\x07Healthy\x1a\x04\x0a\x02\x08\x01"
