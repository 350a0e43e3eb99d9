"""The agent against a runtime: containers created, refused, validated, swept, and reported.

The service runs as in production, over a real socket, with files on a real kernel; the runtime at
the other end and the child that reports the GPUs are the test's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from contract import allocation, grant_file, grants, names
from contract.allocation import Allocation, DeviceEntry
from contract.grants import GpuGrant
from nri_plugin.__main__ import main as agent_main
from nri_plugin.gpu.contexts import Contexts
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.host import watch
from nri_plugin.host.files import RunDirectory
from nri_plugin.host.store import Store
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.nri import connection
from nri_plugin.nri.service import Service
from nri_plugin.policy.gpu_modes import Assigned, Offer
from nri_plugin.policy.kube_objects import Bound
from nri_plugin.policy.ledger import Part
from nri_plugin.policy.model import Pod, Share
from nri_plugin.settings import Settings
from tests.nri_plugin.fake_runtime import FakeRuntime, RequestFailed, connected_pair
from tests.nri_plugin.objects import clear
from tests.support import until_async

pytestmark = pytest.mark.node

UUID = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
TOTAL = 40 << 30
GPUS = json.dumps({"gpus": [{"uuid": UUID, "minor": 0, "memory_bytes": TOTAL}]})
NVML = "import sys\nfor _ in sys.stdin: print(sys.argv[1], flush=True)"
HALF = allocation.encode(
    Allocation(
        {"gpu": [DeviceEntry(0, {names.RESOURCE_MEMORY_RATIO: 50, names.RESOURCE_CORE: 50}, UUID)]}
    )
)
QUARTER = allocation.encode(
    Allocation(
        {"gpu": [DeviceEntry(0, {names.RESOURCE_MEMORY_RATIO: 25, names.RESOURCE_CORE: 25}, UUID)]}
    )
)
GRANTS = grants.encode({"main": [GpuGrant(UUID, 0, 5 << 30, 20)]})
LABEL = names.LABEL_ISOLATION_PROVIDER


class Host:
    """A node's directories, and the settings that name them."""

    def __init__(self, tmp_path: Path) -> None:
        self.run = tmp_path / "run"
        self.cdi = tmp_path / "cdi"
        self.library = tmp_path / "libvgpu.so"
        self.socket = tmp_path / "nri.sock"
        self.library.write_bytes(b"\x7fELF")
        self.cdi.mkdir()
        mounts = [{"hostPath": "/host/gpu0", "containerPath": "/dev/gpu0", "options": ["bind"]}]
        hooks = [{"hookName": "createContainer", "path": "/bin/true", "args": ["true"]}]
        node = {"path": "/dev/x", "type": "c", "major": 1, "minor": 3, "fileMode": 0, "uid": 0}
        document = {
            "cdiVersion": "0.6.0",
            "kind": names.CDI_KIND,
            "devices": [
                {"name": UUID, "containerEdits": {"mounts": mounts, "deviceNodes": [node]}}
            ],
            "containerEdits": {"hooks": hooks},
        }
        (self.cdi / "gpu.json").write_text(json.dumps(document))
        self.settings = Settings(
            nri_socket=self.socket,
            index="50",
            run_dir=self.run,
            store_dir=tmp_path / "store",
            library=self.library,
            cdi_dirs=(self.cdi,),
            containerd_state=tmp_path / "state",
            environment=os.environ,
            work_deadline_s=60.0,
            first_retry_s=0.01,
            last_retry_s=0.02,
        )

    def parts(
        self, gpus: str = GPUS, context: str = "print(300 << 20)"
    ) -> tuple[Inventory, Contexts, RunDirectory, Store]:
        inventory = Inventory(
            os.environ,
            deadline_s=60,
            min_interval_s=5,
            now=asyncio.get_running_loop().time,
            command=(sys.executable, "-c", NVML, gpus),
        )
        self.inventory = inventory
        self.contexts = Contexts(
            os.environ,
            deadline_s=60,
            min_interval_s=0,
            now=asyncio.get_running_loop().time,
            command=(sys.executable, "-c", context),
        )
        files = RunDirectory(self.run, lambda: 7)
        store = Store(self.settings.store_dir, self.library)
        return inventory, self.contexts, files, store

    def service(self, gpus: str = GPUS, context: str = "print(300 << 20)") -> Service:
        return Service(self.settings, *self.parts(gpus, context))

    def keys(self) -> set[str]:
        return set(os.listdir(self.run)) if self.run.exists() else set()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    clear(RunDirectory(host.run, lambda: 1))


@contextlib.asynccontextmanager
async def serving(
    handler: Service,
    pods: list[nri.PodSandbox] | None = None,
    containers: list[nri.Container] | None = None,
    nri_version: tuple[int, int, int] = (0, 12, 5),
    request_timeout_s: float = 60,
) -> AsyncIterator[FakeRuntime]:
    theirs, ours = await connected_pair()
    runtime = FakeRuntime(*theirs, nri_version=nri_version, request_timeout_s=request_timeout_s)
    task = asyncio.create_task(connection.serve(ours, handler, name="gpuslice", index="50"))
    try:
        await runtime.handshake(pods or [], containers or [])
        await handler._containers.sweeper.settled()
        yield runtime
    finally:
        await runtime.close()
        await asyncio.wait([task])
        task.exception()
        await handler._lifecycle._creation._contexts.settled()
        await handler._lifecycle._inventory.close()


def pod(
    number: int = 0, labels: dict[str, str] | None = None, **annotations: str
) -> nri.PodSandbox:
    keys = {"allocated": names.ANNOTATION_DEVICE_ALLOCATED, "grants": names.ANNOTATION_GRANTS}
    return nri.PodSandbox(
        id=f"sandbox-{number}",
        name=f"train-{number}",
        uid=f"uid-{number}",
        namespace="team",
        labels={LABEL: "hami-core"} if labels is None else labels,
        annotations={keys[k]: v for k, v in annotations.items()},
    )


def container(number: int = 0, name: str = "main", sandbox: int = 0) -> nri.Container:
    return nri.Container(
        id=f"c{number}",
        pod_sandbox_id=f"sandbox-{sandbox}",
        name=name,
        env=["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"],
    )


def as_made(of: nri.Container, reply: nri.CreateContainerResponse | None) -> nri.Container:
    """The container as the runtime describes it once our adjustment is in its spec."""
    made = nri.Container()
    made.CopyFrom(of)
    if reply is not None:
        made.mounts.extend(reply.adjust.mounts)
    return made


async def refused(runtime: FakeRuntime, of: nri.PodSandbox, what: nri.Container) -> str:
    with pytest.raises(RequestFailed) as failed:
        await runtime.create(of, what)
    assert runtime.dropped is None
    return failed.value.message


async def test_of_a_gpu_that_a_pod_holds_whole_no_share_is_given(host: Host) -> None:
    """Until the kubelet has reported its pods it is not known, and the kubelet retries."""
    host.settings = replace(host.settings, whole_gpus=Offer(any=True))
    service = host.service()
    modes, share = service.node.modes, pod(allocated=HALF, grants=GRANTS)
    async with serving(service) as runtime:
        text = await refused(runtime, share, container())
        assert "the agent cannot list the GPUs that pods hold whole: " in text
        modes.assigned(Assigned({UUID: "team/whole"}, {}), frozenset(), 0)
        text = await refused(runtime, share, container())
        wanted = f"invalid value {UUID}: must not be held whole; team/whole holds it"
        assert wanted in text
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


async def test_a_grant_becomes_files_mounts_and_the_gpu(host: Host) -> None:
    async with serving(host.service()) as runtime:
        reply = await runtime.create(pod(allocated=HALF, grants=GRANTS), container())
        assert reply is not None
        adjust = reply.adjust
        places = {m.destination: m.source for m in adjust.mounts}
        assert places["/.gpuslice"] == str(host.run / "c0")
        assert places["/dev/gpu0"] == "/host/gpu0"
        assert places["/.gpuslice/libvgpu.so"].startswith(str(host.settings.store_dir))
        env = {e.key: e.value for e in adjust.env}
        assert env["NVIDIA_VISIBLE_DEVICES"] == UUID
        assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == str(5 << 30)
        (device,) = adjust.linux.devices
        assert (device.path, device.major, device.minor) == ("/dev/x", 1, 3)
        assert device.HasField("file_mode") and device.HasField("uid")
        assert not device.HasField("gid")
        assert [hook.path for hook in adjust.hooks.create_container] == ["/bin/true"]
        grant = grant_file.decode((host.run / "c0/grant").read_bytes())
        gpu = grant_file.Gpu(UUID, 5 << 30, 20, 0, context_bytes=512 << 20, code_bytes=64 << 20)
        assert grant == grant_file.Grant(7, (gpu,))
        made = as_made(container(), reply)
        await runtime.notify("RemoveContainer", pod(), made)
        assert host.keys() == set()


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
        await host.contexts.settled()
        assert await granted(1) == 300 << 20


async def test_a_hanging_context_measurement_delays_no_container(host: Host) -> None:
    async with serving(host.service(context="import time; time.sleep(600)")) as runtime:
        assert await runtime.create(pod(allocated=HALF), container()) is not None
        await host.contexts.close()
        child = host.contexts._children[UUID].lingering
        assert child is None or await child.wait() != 0


async def test_a_pod_with_rdma_alone_waits_for_nothing_of_ours(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither at its creation, whatever CDI devices it has, nor at its start."""
    of, made = pod(labels={}, allocated='{"rdma":[{"minor":0}]}'), container()
    made.cdi_devices.add(name="example.com/nic=0")
    hangs = threading.Event()
    handler = host.service()
    monkeypatch.setattr(handler._lifecycle._start, "without_share", None)
    async with serving(handler) as runtime:
        stuck = asyncio.create_task(handler._worker.run(hangs.wait, 60))
        assert await runtime.create(of, made) == nri.CreateContainerResponse()
        await runtime.notify("StartContainer", of, made)
        hangs.set()
        await stuck


async def test_an_rdma_allocation_that_changes_while_its_pod_runs_changes_nothing(
    host: Host,
) -> None:
    """koord-scheduler or an operator moves the pod to another device: neither the agent's start
    nor the pod's next container is affected."""
    rdma, other = '{"rdma":[{"minor":0}]}', '{"rdma":[{"minor":1}]}'
    of, runs, made = pod(labels={}, allocated=rdma), container(), container(1)
    runs.state = nri.CONTAINER_RUNNING
    handler = host.service('{"gpus": []}')
    bound_pods = handler._lifecycle._creation._bound_pods
    for text in (rdma, other):
        seen = Pod(of.uid, of.namespace, of.name, {}, {names.ANNOTATION_DEVICE_ALLOCATED: text})
        bound_pods.put(Bound(seen, "2026-01-01T00:00:00Z", False, False, {}), listing=False)
    async with serving(handler, [of], [runs]) as runtime:
        assert await runtime.create(of, made) == nri.CreateContainerResponse()
        await runtime.notify("StartContainer", of, made)
        assert (handler.holds, bound_pods.foreign(), host.keys()) == ((), {}, set())


async def test_a_container_without_a_share_starts_though_cdi_specs_hang(host: Host) -> None:
    host.settings = replace(host.settings, work_deadline_s=0.2)
    handler, hangs = host.service(), threading.Event()
    made = container(name="sidecar")
    made.cdi_devices.add(name="example.com/nic=0")
    async with serving(handler) as runtime:
        stuck = asyncio.create_task(handler._worker.run(hangs.wait, 60))
        assert await runtime.create(pod(allocated=HALF, grants=GRANTS), made) is not None
        hangs.set()
        await stuck


async def test_gpus_that_nvidias_default_runtime_gives_are_counted(host: Host) -> None:
    sandbox = pod(labels={})
    bundle = host.settings.containerd_state / "io.containerd.runtime.v2.task/k8s.io" / sandbox.id
    bundle.mkdir(parents=True)
    (bundle / "runtime").write_text("/usr/bin/nvidia-container-runtime")
    handler = host.service()
    async with serving(handler, [sandbox]) as runtime:
        for value in ("all", "void"):
            made = container()
            del made.env[:]
            made.env.append(f"NVIDIA_VISIBLE_DEVICES={value}")
            assert await runtime.create(sandbox, made) == nri.CreateContainerResponse()
        assert handler._metrics.unlimited.labels("nvidia_runtime")._value.get() == 1
        assert "default runtime is /usr/bin/nvidia" in (await watch.inspect(handler.node)).lacks[0]


@pytest.mark.parametrize(
    ("default", "handler", "index"),
    [
        ("/usr/bin/runc", "", True),
        ("/usr/bin/nvidia-container-runtime", "", False),
        ("/usr/bin/nvidia-container-runtime", "runc", True),
        ("/usr/bin/runc", "nvidia", False),
        ("", "", False),
    ],
    ids=["runc", "nvidia", "runc-by-handler", "nvidia-by-handler", "unknown"],
)
async def test_variables_of_a_grant_in_the_container(
    host: Host, default: str, handler: str, index: bool
) -> None:
    """NVIDIA's runtime would inject the GPU that the index names, which is NVML's."""
    granted = {"main": [GpuGrant(UUID, 0, 5 << 30, 20)]}
    variables = {"main": {"VOLCANO_GPU_ALLOCATED": "5120"}}
    of = pod(allocated=HALF, grants=grants.encode(granted, variables, "index"))
    of.runtime_handler = handler
    state = host.settings.containerd_state / "io.containerd.runtime.v2.task/k8s.io"
    (state / of.id).mkdir(parents=True)
    if default:
        (state / of.id / "runtime").write_text(default)
    async with serving(host.service()) as runtime:
        if handler:  # the default shows in another pod's sandbox
            (state / "sandbox-1").mkdir()
            (state / "sandbox-1/runtime").write_text(default)
            await runtime.create(pod(1, {}), container(1, sandbox=1))
        reply = await runtime.create(of, container())
        assert reply is not None
        env = {each.key: each.value for each in reply.adjust.env}
        assert env["VOLCANO_GPU_ALLOCATED"] == "5120"
        assert env["NVIDIA_VISIBLE_DEVICES"] == ("0" if index else UUID)


async def test_an_unhealthy_gpu_is_refused_with_its_problem(host: Host) -> None:
    """As of a GPU in MIG mode, or after an XID: NVML lists it, and it cannot be shared."""
    problem = "row remapping is pending: reset the GPU"
    gpus = {"gpus": [{"uuid": UUID, "minor": 0, "memory_bytes": TOTAL, "problem": problem}]}
    async with serving(host.service(json.dumps(gpus))) as runtime:
        text = await refused(runtime, pod(allocated=HALF), container())
        assert f"gpu[0]: invalid value {UUID}: must be a healthy GPU: {problem}; delete" in text
        assert host.keys() == set()


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


async def test_a_container_gets_what_the_node_is_when_it_is_made(host: Host) -> None:
    """A decision on the previous state is a guess; a change since is detected in time."""
    spec = host.cdi / "gpu.json"
    async with serving(host.service()) as runtime:
        for number, path in enumerate(("/dev/gpu0", "/dev/gpu0", "/dev/gpu-one")):
            spec.write_text(spec.read_text().replace("/dev/gpu0", path))
            of = pod(number, allocated=QUARTER)
            reply = await runtime.create(of, container(number, sandbox=number))
            assert reply is not None
            assert path in {mount.destination for mount in reply.adjust.mounts}
        spec.write_text(spec.read_text().replace(UUID, "GPU-other"))
        text = await refused(runtime, pod(3, allocated=QUARTER), container(3, sandbox=3))
        assert f"CDI device nvidia.com/gpu={UUID}: not found" in text


async def test_a_driver_that_does_not_answer_refuses(host: Host) -> None:
    async with serving(host.service("no")) as runtime:
        text = await refused(runtime, pod(allocated=HALF), container())
        assert "the agent cannot list this node's GPUs: unreadable answer" in text


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


async def test_the_work_of_one_request_has_one_deadline_below_the_runtimes(host: Host) -> None:
    """Whatever each step may take: here 60 s each, and a runtime that waits for one."""
    free = threading.Event()
    handler = host.service()
    async with serving(handler, request_timeout_s=1) as runtime:
        stuck = asyncio.create_task(handler._worker.run(lambda: free.wait(60), 60))
        text = await refused(runtime, pod(allocated=HALF), container())
        assert text == "gpuslice did not decide CreateContainer within 0.75 s"
        assert not handler._containers.ledger.holds()
        free.set()
        await stuck
    async with serving(handler) as runtime:
        assert await runtime.create(pod(allocated=HALF), container(1)) is not None


async def test_a_step_that_is_late_is_refused_by_its_name(host: Host) -> None:
    """The share is released, and files that are made too late are removed."""
    host.settings = replace(host.settings, work_deadline_s=1.0)
    free = threading.Event()
    handler = host.service()
    async with serving(handler) as runtime:
        await handler._lifecycle._inventory.refresh()
        stuck = asyncio.create_task(handler._worker.run(free.wait, 60))
        made = container(0)
        text = await refused(runtime, pod(allocated=HALF), made)
        assert "the node took too long to make the container's files" in text
        assert not handler._containers.ledger.holds()
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
                assert host.keys() == {".lock"} and not handler._containers.ledger.holds()
                (host.run / ".lock").unlink()
                assert await runtime.create(pod(allocated=HALF), container()) is not None
                clear(RunDirectory(host.run, lambda: 1))

        asyncio.run(work())
    finally:
        subprocess.run(["umount", host.run], check=True)


async def test_synchronize_adopts_200_containers_beside_1000_stale_directories(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """Each has 1/200 of the GPU, one has lost its files; the next one finds none left."""
    part = TOTAL // 200
    resources = {names.RESOURCE_MEMORY: part, names.RESOURCE_CORE: 0}
    text = allocation.encode(Allocation({"gpu": [DeviceEntry(0, resources, UUID)]}))
    granted = grants.encode({"main": [GpuGrant(UUID, 0, part, 0)]})
    pods = [pod(number, allocated=text, grants=granted) for number in range(200)]
    listed = [as_made(container(number, sandbox=number), None) for number in range(200)]
    files = RunDirectory(host.run, lambda: 7)
    for made in listed:
        made.mounts.add(destination="/.gpuslice", source=str(host.run / made.id))
        if made.id != "c7":
            files.prepare(made.id, [Share(UUID, 0, part, 0)], shared=False)
    for number in range(1000):
        (host.run / f"dead{number}").mkdir()
    handler = host.service()
    await handler._lifecycle._inventory.refresh()
    async with serving(handler, pods, listed) as runtime:
        assert handler._containers.ledger.granted() == {UUID: Part(200 * part, 0)}
        rest = pod(200, allocated=text, grants=granted)
        assert "insufficient free capacity" in await refused(runtime, rest, container(200))
        await runtime.stop(pods[0], listed[0])
        assert await runtime.create(rest, container(200)) is not None
    assert len(host.keys()) == 200
    lost = [r.getMessage() for r in caplog.records if "whose grant is gone" in r.getMessage()]
    assert len(lost) == 1 and "pod=train-7" in lost[0]


async def test_a_container_in_creation_keeps_its_hold_for_one_synchronize(host: Host) -> None:
    """Answered, and the runtime's list is older than the answer."""
    whole = HALF.replace("50", "100")
    handler = host.service()
    async with serving(handler) as runtime:
        await runtime.create(pod(0, allocated=whole), container(0))
    async with serving(handler) as runtime:
        assert host.keys() == {"pod-uid-0"}
        text = await refused(runtime, pod(1, allocated=whole), container(1, sandbox=1))
        assert "insufficient free capacity" in text
    async with serving(handler):
        assert host.keys() == set()


async def test_the_hold_of_a_container_that_was_never_created_expires(host: Host) -> None:
    """Answered, then containerd was killed: no event for the container will ever arrive."""
    whole = HALF.replace("50", "100")
    host.settings = replace(host.settings, making_s=0.05)
    handler = host.service()
    async with serving(handler) as runtime:
        await runtime.create(pod(0, allocated=whole), container(0))
    async with serving(handler) as runtime:
        while True:
            with contextlib.suppress(RequestFailed):
                await runtime.create(pod(1, allocated=whole), container(1, sandbox=1))
                break
            await asyncio.sleep(0.01)


async def test_synchronize_removes_orphans_and_records_users(host: Host) -> None:
    of = pod(allocated=HALF)
    async with serving(host.service()) as runtime:
        shared = as_made(container(0), await runtime.create(of, container(0)))
        owned = pod(1, allocated=HALF, grants=GRANTS)
        lone = as_made(container(1, sandbox=1), await runtime.create(owned, container(1)))
        await runtime.create(owned, container(2))
        assert host.keys() == {"pod-uid-0", "c1", "c2"}
    # A new agent, as after kill -9; the runtime lists two of the three.
    async with serving(host.service(), [of, owned], [shared, lone]) as runtime:
        assert host.keys() == {"pod-uid-0", "c1"}
        again = as_made(container(3, "side"), await runtime.create(of, container(3, "side")))
        await runtime.notify("RemoveContainer", of, shared)
        assert host.keys() == {"pod-uid-0", "c1"}
        await runtime.notify("RemoveContainer", of, again)
        await runtime.notify("RemoveContainer", owned, lone)
        assert host.keys() == set()


async def test_files_of_a_container_that_was_never_created_are_removed(host: Host) -> None:
    """containerd was killed. A container that did not start is neither in its list nor in a removal
    event; the others are."""
    host.settings = replace(host.settings, making_s=0.05)
    called = ("main", "listed", "started")
    share = [GpuGrant(UUID, 0, 5 << 30, 10)]
    of = pod(allocated=HALF, grants=grants.encode(dict.fromkeys(called, share)))
    handler = host.service()
    async with serving(handler) as runtime:
        made = []
        for number, name in enumerate(called):
            what = container(number, name)
            made.append(as_made(what, await runtime.create(of, what)))
        assert host.keys() == {"c0", "c1", "c2"}
    async with serving(handler, [of], [made[1]]) as runtime:
        with contextlib.suppress(RequestFailed):  # there is nothing to start
            await runtime.notify("StartContainer", of, made[2])
        await until_async(lambda: host.keys() == {"c1", "c2"})


async def test_containers_made_without_the_agent_are_logged_and_counted(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    of = [pod(allocated=HALF), pod(1, labels={})]
    handler = host.service()
    async with serving(handler, of, [container(), container(1, sandbox=1)]):
        pass
    counted = handler._metrics.registry.get_sample_value
    for kind, count in (("not_adjusted", 1), ("files_lost", 0), ("foreign_gpu", 0)):
        assert counted("gpuslice_stray_containers", {"kind": kind}) == count
    lines = [r.getMessage() for r in caplog.records if "without its GPU" in r.getMessage()]
    assert len(lines) == 1
    assert "namespace=team pod=train-0 uid=uid-0 container=main" in lines[0]


@pytest.mark.parametrize("nri_version", [(0, 11, 0), (0, 12, 5)])
async def test_a_container_that_was_not_adjusted_does_not_start(
    host: Host, nri_version: tuple[int, int, int]
) -> None:
    async with serving(host.service(), nri_version=nri_version) as runtime:
        with pytest.raises(RequestFailed, match="did not request"):
            await runtime.notify("StartContainer", pod(allocated=HALF), container())
        made = container()
        made.mounts.add(destination="/.gpuslice", source=str(host.run / "c0"))
        with pytest.raises(RequestFailed, match="did not request"):
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
        reply = await runtime.create(of, container())
        assert reply is not None

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
            answer = await runtime.call(
                "ValidateContainerAdjustment",
                request,
                nri.ValidateContainerAdjustmentResponse,
            )
            assert answer.reject == bool(answer.reason)
            return answer.reason

        assert await verdict(reply.adjust, container()) == ""
        without = nri.ContainerAdjustment()
        without.CopyFrom(reply.adjust)
        del without.mounts[:]
        assert "another NRI plugin changed the agent's adjustment: mount" in await verdict(
            without, container()
        )
        nothing = nri.ContainerAdjustment()
        same = await verdict(nothing, container(), theirs=reply.adjust)
        assert same == "", "another plugin's, with the same limits"
        assert "did not request" in await verdict(nothing, container(9))
        web = pod(1, labels={})
        assert await verdict(nothing, container(9), web) == ""
        assert await verdict(nothing, container(9, "sidecar")) == ""
        gpu = nri.ContainerAdjustment()
        gpu.linux.devices.add(path="/dev/nvidia0", type="c", major=195)
        brought = "NRI plugin 60-other injected a GPU by device /dev/nvidia0"
        assert await verdict(nothing, container(9), web, gpu) == ""
        assert await verdict(nothing, container(9, "sidecar"), of, gpu) == ""
        counted = handler._metrics.unlimited.labels("nri_plugin")
        assert counted._value.get() == 2
        assert brought in await verdict(reply.adjust, container(), of, gpu)
        removal = nri.ContainerAdjustment()
        removal.linux.devices.add(path="-/dev/nvidia0")
        assert await verdict(nothing, container(9), web, removal) == ""


def test_the_agent_reconnects_after_the_runtime_restarts(host: Host) -> None:
    """The whole program: its ready line, again after a restart, and a clean exit, also of a second
    agent, which waits."""
    command = [sys.executable, "-m", "nri_plugin", "--library", host.library, "--cdi-dir", host.cdi]
    command += ["--nri-socket", host.socket, "--run-dir", host.run, "--http", "off"]
    command += ["--store-dir", host.settings.store_dir]
    start = partial(subprocess.Popen, command, stdout=-1, stderr=-1, text=True)
    agent = beside = start()
    assert agent.stdout is not None and agent.stderr is not None
    told = next(line for line in agent.stderr if str(host.socket) in line)
    assert "is containerd running, with NRI on?" in told

    async def one_life() -> None:
        connected: asyncio.Queue[FakeRuntime] = asyncio.Queue()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            runtime = FakeRuntime(reader, writer, request_timeout_s=60)
            await connected.put(runtime)

        server = await asyncio.start_unix_server(accept, host.socket)
        runtime = await connected.get()
        await runtime.handshake()
        assert runtime.registration.plugin_name == "gpuslice"
        assert runtime.registration.plugin_idx == "50"
        assert agent.stdout is not None
        line = await asyncio.to_thread(agent.stdout.readline)
        assert line == "ready: registered with containerd 2.4.2 (NRI v0.12.3)\n"
        await runtime.close()
        server.close()
        host.socket.unlink()

    try:
        for _ in range(2):
            asyncio.run(one_life())
        beside = start()
        assert beside.stderr is not None
        told = next(line for line in beside.stderr if "another agent" in line)
        assert f"another agent serves this node (pid={agent.pid} host=" in told
    finally:
        ended = []
        for each in dict.fromkeys((beside, agent)):
            each.send_signal(signal.SIGTERM)
            ended.append((*each.communicate(), each.returncode))
    for output, log, code in ended:
        assert (output, code) == ("", 0), log
        assert "Traceback" not in log


def test_without_root_the_agent_exits_with_an_error(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "argv", ["nri_plugin", "--library", str(host.library)])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert agent_main() == 1
    assert "needs root" in caplog.text
