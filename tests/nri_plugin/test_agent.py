"""The whole agent and its program, with a runtime at a socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lab import pages
from nri_plugin import agent, command_line
from nri_plugin.__main__ import main as agent_main
from nri_plugin.gpu.arbiter_process import ArbiterProcess
from nri_plugin.gpu.contexts import Contexts
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.gpu.measuring import Measuring
from nri_plugin.host.node import Node
from nri_plugin.policy.gpu_modes import Offer
from nri_plugin.policy.ledger import Hold, Part
from nri_plugin.policy.model import Gpu, Pod
from nri_plugin.policy.other_plugins import Sign
from nri_plugin.settings import Settings
from nri_plugin.threads import Worker
from tests.nri_plugin import objects
from tests.nri_plugin.fake_runtime import FakeRuntime, RequestFailed
from tests.nri_plugin.fake_trunk import Dropped
from tests.nri_plugin.kubelet.fake_kubelet import FakeKubelet
from tests.nri_plugin.service_scene import Host
from tests.support import until_async


async def test_a_pause_ends_where_containerd_recreates_its_socket(tmp_path: Path) -> None:
    """The agent pauses for minutes after a runtime has refused it."""
    place = tmp_path / "nri.sock"
    place.touch()
    pausing = [asyncio.create_task(agent._pause(place, pause_s)) for pause_s in (1, 300)]
    await asyncio.sleep(0)
    assert not any(each.done() for each in pausing)
    (tmp_path / "new.sock").touch()
    (tmp_path / "new.sock").rename(place)
    async with asyncio.timeout(60):
        await asyncio.gather(*pausing)


def _settings(tmp_path: Path, *more: str) -> Settings:
    flags = ["--library", tmp_path / "absent.so", "--http", f"unix:{tmp_path / 'agent.sock'}"]
    flags += ["--nri-socket", tmp_path / "nri.sock", "--run-dir", tmp_path / "run"]
    flags += ["--containerd-state", tmp_path, "--cdi-dir", tmp_path / "cdi"]
    return command_line.from_arguments([*map(str, flags), *more], {})


@contextlib.asynccontextmanager
async def running(
    chosen: Settings,
    connected: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    say: Callable[[str], None] = print,
) -> AsyncIterator[None]:
    """Run the agent, and a runtime that handles each connection with `connected`."""
    chosen.run_dir.mkdir(mode=0o700, exist_ok=True)
    leaving = asyncio.Event()
    server = await asyncio.start_unix_server(connected, chosen.nri_socket)
    serving = asyncio.create_task(agent.run(chosen, say, leaving, "test"))
    try:
        yield
    finally:
        leaving.set()
        await serving
        server.close()


async def test_no_whole_gpu_is_offered_before_the_runtime_listed_its_containers(
    tmp_path: Path, short: Path
) -> None:
    """A running container may have a share of the GPU that the kubelet would allocate."""
    kubelet = FakeKubelet(short)
    await kubelet.start()
    chosen = _settings(tmp_path, "--whole-gpus", "any")
    chosen = replace(chosen, kubelet_dir=kubelet.root, device_plugin_dir=kubelet.plugins)
    sessions: asyncio.Queue[FakeRuntime] = asyncio.Queue()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sessions.put_nowait(FakeRuntime(reader, writer))

    async with running(chosen, connected):
        runtime = await sessions.get()
        await asyncio.sleep(1.5)
        assert not kubelet.registered
        await runtime.handshake()
        await until_async(lambda: kubelet.registered)
        await runtime.close()
    await kubelet.stop()


async def test_a_runtime_too_old_is_named_in_log_and_readiness(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    page = tmp_path / "agent.sock"
    received, announced = list[str](), list[str]()
    caplog.set_level(logging.INFO)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fake = FakeRuntime(reader, writer, runtime=("containerd", "v1.7.24"), nri_version=(0, 6, 1))
        try:
            await fake.handshake()
        except (RequestFailed, Dropped) as error:
            received.append(str(error))
        await fake.close()

    def named() -> bool:
        status, text = pages.get(page, "/readyz") if page.exists() else (0, "")
        return status == 503 and "v1.7.24 is not served" in text

    async with running(_settings(tmp_path), connected, announced.append):
        await until_async(named)
    assert announced == []
    problem = "containerd v1.7.24 is not served: its NRI (0.6.1)"
    assert problem in received[0] and problem in caplog.text
    assert "use containerd 1.7.26 or newer" in caplog.text
    assert "running without an API server" in caplog.text and "internal" not in caplog.text


@pytest.mark.node
def test_the_agent_reconnects_after_the_runtime_restarts(host: Host) -> None:
    """The agent prints its ready line after each registration. Meanwhile a second agent waits. Both
    agents exit without an error."""
    command: list[str | Path] = [sys.executable, "-m", "nri_plugin", "--http", "off"]
    command += ["--library", host.library, "--cdi-dir", host.cdi, "--run-dir", host.run]
    command += ["--nri-socket", host.socket, "--containerd-state", host.run.parent]
    agents: list[subprocess.Popen[str]] = []

    def logged_by_a_new_agent(text: str) -> str:
        agents.append(subprocess.Popen(command, stdout=-1, stderr=-1, text=True))
        return next(line for line in agents[-1].stderr or () if text in line)

    async def one_life() -> None:
        connected: asyncio.Queue[FakeRuntime] = asyncio.Queue()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await connected.put(FakeRuntime(reader, writer))

        server = await asyncio.start_unix_server(accept, host.socket)
        runtime = await connected.get()
        await runtime.handshake()
        registered = runtime.registration
        assert (registered.plugin_name, registered.plugin_idx) == ("gpuslice", "50")
        assert agents[0].stdout is not None
        line = await asyncio.to_thread(agents[0].stdout.readline)
        assert (
            line
            == "ready: registered with containerd 2.4.2 (NRI v0.12.3); memory limits: library\n"
        )
        await runtime.close()
        server.close()
        host.socket.unlink()

    try:
        absent = logged_by_a_new_agent(f"no process listens at {host.socket}")
        assert "start containerd with NRI enabled" in absent
        for _ in range(2):
            asyncio.run(one_life())
        waits = logged_by_a_new_agent("another agent")
        assert f"another agent serves this node (pid={agents[0].pid} host=" in waits
    finally:
        ended = []
        for each in reversed(agents):
            each.send_signal(signal.SIGTERM)
            ended.append((*each.communicate(), each.returncode))
    for output, log, code in ended:
        assert (output, code) == ("", 0), log
        assert "Traceback" not in log


async def test_a_part_of_the_agent_that_fails_is_logged_and_started_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test makes each part raise an exception once."""
    starts: list[str] = []

    def fails_once(part: str) -> Callable[..., Awaitable[None]]:
        async def work(*_: object) -> None:
            starts.append(part)
            if starts.count(part) == 1:
                raise KeyError("any bug")
            await asyncio.Event().wait()

        return work

    monkeypatch.setattr(Measuring, "sample", fails_once("measuring"))
    monkeypatch.setattr(ArbiterProcess, "_run_once", fails_once("arbiter"))
    monkeypatch.setattr(Contexts, "measure", fails_once("contexts"))
    monkeypatch.setattr(agent, "watch", fails_once("watch"))
    leaving = asyncio.Event()
    serving = asyncio.create_task(agent.run(_settings(tmp_path), print, leaving, "test"))
    await until_async(lambda: len(starts) == 8)
    leaving.set()
    await serving
    for part in ("measuring", "arbiter", "contexts", "watch"):
        assert starts.count(part) == 2
        assert f"task={part} again_in_s=1" in caplog.text


def test_contexts_are_made_on_gpus_that_nothing_uses(tmp_path: Path) -> None:
    """No context is made on a node of another device plugin, which may have assigned the GPUs."""
    inventory = Inventory({})
    inventory.seen = [Gpu(f"GPU-{n}", n, 8, model="A") for n in range(4)]
    parts = objects.parts(_settings(tmp_path), inventory)
    node = Node(parts.settings, inventory, parts.store, Worker("files"))
    node.modes.excluded = {"GPU-0"}
    part = {"GPU-2": Part(4, 50)}
    parts.ledger.adopt([Hold("c", "key", "u", "main", "d/p/main", part, Pod("u", "d", "p"))], ())
    node.modes.offer = Offer(any=True)
    node.modes.allocate(["GPU-1"], inventory.seen, frozenset(), 0.0)
    assert not agent.unused_gpus(node, parts), "the agent is not ready yet"
    parts.readiness.session, parts.readiness.node = None, ()
    assert [gpu.uuid for gpu in agent.unused_gpus(node, parts)] == ["GPU-3"]
    in_cluster = replace(parts, settings=replace(parts.settings, kubeconfig="any"))
    assert not agent.unused_gpus(node, in_cluster), "the node's pods are not known yet"
    in_cluster.bound_pods.listed = True
    assert [gpu.uuid for gpu in agent.unused_gpus(node, in_cluster)] == ["GPU-3"]
    node.modes.note("socket", Sign("nvidia-gpu.sock"), 0.0)
    assert agent.unused_gpus(node, parts) == []


async def test_the_agent_measures_contexts_on_unused_gpus_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[object] = []
    unused = [Gpu("GPU-3", 3, 8)]

    async def measure(_: Contexts, gpus: object) -> None:
        measured.append(gpus)

    monkeypatch.setattr(Contexts, "measure", measure)
    monkeypatch.setattr(agent, "unused_gpus", lambda *_: unused)
    leaving = asyncio.Event()
    serving = asyncio.create_task(agent.run(_settings(tmp_path), print, leaving, "test"))
    await until_async(lambda: measured)
    leaving.set()
    await serving
    assert measured[0] is unused


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another user")
async def test_the_run_directory_is_secured_before_the_agent_connects(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The directory belongs to another user, then to root with the mode that a kubelet gives it."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    run_dir.chmod(0o755)
    os.chown(run_dir, 65534, 0)
    modes: list[int] = []

    async def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        modes.append(run_dir.stat().st_mode & 0o777)
        writer.close()

    problem = f"{run_dir}: invalid owner, user 65534: must be user 0"
    async with running(_settings(tmp_path), connected):
        await until_async(lambda: problem in caplog.text)
        assert (os.listdir(run_dir), modes) == ([], [])
        os.chown(run_dir, 0, 0)
        await until_async(lambda: modes)
    assert set(modes) == {0o700}


@pytest.mark.node
def test_without_root_the_agent_exits_with_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "argv", ["nri_plugin", "--library", "/libvgpu.so"])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert agent_main() == 1
    assert "needs root" in caplog.text
