"""nri_plugin.nri.connection over a real socket, against a runtime as strict as the Go one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.nri.answers import SynchronizeFailed
from nri_plugin.nri.connection import QUIET_S, RegistrationTimedOut, RuntimeRefused, serve
from nri_plugin.nri.handler import Answer, Handler
from nri_plugin.policy.refusals import Reason, Refused, refused
from nri_plugin.protocol.errors import RegistrationRejected, RemoteProtocolError
from nri_plugin.protocol.events import RuntimeInfo
from tests.nri_plugin.fake_runtime import Dropped, FakeRuntime, RequestFailed, connected_pair
from tests.nri_plugin.objects import container, pod

VERSIONS: list[dict[str, Any]] = [
    {"runtime": ("containerd", "v1.7.26"), "nri_version": (0, 8, 0)},
    {"runtime": ("containerd", "1.7.35"), "nri_version": (0, 8, 0)},
    {"runtime": ("containerd", "v2.2.7"), "nri_version": (0, 11, 0)},
    {"runtime": ("containerd", "2.4.2"), "nri_version": (0, 12, 3)},
    {"runtime": ("containerd", "2.5.0"), "nri_version": (0, 12, 5)},
]
"""Runtimes and their NRI versions; those before 0.12 do not report theirs."""


class Recorder:
    """A handler that records its calls, and runs the hooks that a test sets."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.state: tuple[Sequence[nri.PodSandbox], Sequence[nri.Container]] | None = None
        self.adjustment: nri.ContainerAdjustment | None = None
        self.hooks: dict[str, Callable[[], Awaitable[object]]] = {}
        self.objection: BaseException | None = None
        """Raised by the validation, and by every other method that answers at once."""
        self.at_once = False

    async def _asked(self, method: str, container_id: str) -> None:
        self.asked.append((method, container_id))
        if method in self.hooks:
            await self.hooks[method]()

    async def synchronize(
        self, pods: Sequence[nri.PodSandbox], containers: Sequence[nri.Container]
    ) -> None:
        self.state = (pods, containers)
        await self._asked("synchronize", "")

    def create_container(
        self, pod: nri.PodSandbox, container: nri.Container
    ) -> Answer[nri.CreateContainerResponse | None]:
        if self.at_once:
            self._asked_at_once("create", container.id)
            return self._reply()
        return self._create_later(container)

    async def _create_later(self, container: nri.Container) -> nri.CreateContainerResponse | None:
        await self._asked("create", container.id)
        return self._reply()

    def _reply(self) -> nri.CreateContainerResponse | None:
        return self.adjustment and nri.CreateContainerResponse(adjust=self.adjustment)

    async def start_container(self, pod: nri.PodSandbox, container: nri.Container) -> None:
        await self._asked("start", container.id)

    def stop_container(self, pod: nri.PodSandbox, container: nri.Container) -> Answer[None]:
        if self.at_once:
            self._asked_at_once("stop", container.id)
            return None
        return self._asked("stop", container.id)

    async def remove_container(self, pod: nri.PodSandbox, container: nri.Container) -> None:
        await self._asked("remove", container.id)

    def validate(self, request: nri.ValidateContainerAdjustmentRequest) -> Answer[None]:
        if "look" in self.hooks:
            self.asked.append(("validate", request.container.id))
            return self._looked()
        self._asked_at_once("validate", request.container.id)
        return None

    async def _looked(self) -> None:
        await self.hooks["look"]()
        if self.objection is not None:
            raise self.objection

    def _asked_at_once(self, method: str, container_id: str) -> None:
        self.asked.append((method, container_id))
        if self.objection is not None:
            raise self.objection


class Rig:
    """A runtime, and the plugin serving a Recorder at the other end of the socket."""

    def __init__(self, runtime: FakeRuntime, handler: Recorder, plugin: asyncio.Task[None]) -> None:
        self.runtime = runtime
        self.handler = handler
        self.plugin = plugin
        self.ready: list[RuntimeInfo] = []
        self.leaving = asyncio.Event()


@contextlib.asynccontextmanager
async def rig(*, registration_timeout_s: float = 30.0, **runtime: Any) -> AsyncIterator[Rig]:
    ours, theirs = await connected_pair()
    handler = Recorder()
    checked: Handler = handler
    ready: list[RuntimeInfo] = []
    leaving = asyncio.Event()
    plugin = asyncio.create_task(
        serve(
            theirs,
            checked,
            name="gpuslice",
            index="50",
            on_ready=ready.append,
            leaving=leaving,
            registration_timeout_s=registration_timeout_s,
        )
    )
    fake = FakeRuntime(*ours, **runtime)
    built = Rig(fake, handler, plugin)
    built.ready, built.leaving = ready, leaving
    try:
        yield built
    finally:
        await fake.close()
        await asyncio.gather(plugin, return_exceptions=True)


@contextlib.asynccontextmanager
async def session(**options: Any) -> AsyncIterator[Rig]:
    """A rig whose plugin is registered and synchronized."""
    async with rig(**options) as r:
        await r.runtime.handshake()
        yield r


def raiser(error: BaseException) -> Callable[[], Awaitable[None]]:
    async def hook() -> None:
        raise error

    return hook


async def forever() -> None:
    await asyncio.Event().wait()


async def deaf() -> None:
    """A handler that delays its own cancellation."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.sleep(0.05)
        raise RuntimeError("too late to matter") from None


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_creation_whose_request_has_ended_is_not_begun(at_once: bool) -> None:
    """The process hung, and reads requests that the runtime sent before it dropped the plugin; stop
    and remove events still count."""
    async with session() as r:
        r.handler.at_once = at_once
        message = nri.CreateContainerRequest(pod=pod(), container=container(1))
        r.runtime.send_call("CreateContainer", message.SerializeToString())
        ended = nri.StopContainerRequest(pod=pod(), container=container(2))
        r.runtime.send_call("StopContainer", ended.SerializeToString())
        await r.runtime.close()
        await r.plugin
        assert r.handler.asked[1:] == [("stop", "container-2")]


@pytest.mark.parametrize("version", VERSIONS, ids=lambda v: "-".join(v["runtime"]))
async def test_a_containers_lifecycle_in_every_version(version: dict[str, Any]) -> None:
    async with rig(**version) as r:
        await r.runtime.handshake([pod(1)], [container(1)])
        r.handler.adjustment = nri.ContainerAdjustment(
            env=[nri.KeyValue(key="NVIDIA_VISIBLE_DEVICES", value="GPU-1")]
        )
        reply = await r.runtime.create(pod(2), container(2))
        assert reply is not None
        assert reply.adjust == r.handler.adjustment
        for method in ("PostCreateContainer", "StartContainer", "PostStartContainer"):
            await r.runtime.notify(method, pod(2), container(2))
        await r.runtime.stop(pod(2), container(2))
        await r.runtime.notify("RemoveContainer", pod(2), container(2))
        await r.runtime.close()
        await r.plugin
        validated = [("validate", "container-2")] if version["nri_version"] >= (0, 10) else []
        assert r.handler.asked == [
            ("synchronize", ""),
            ("create", "container-2"),
            *validated,
            ("start", "container-2"),
            ("stop", "container-2"),
            ("remove", "container-2"),
        ]
        assert [(info.name, info.version) for info in r.ready] == [version["runtime"]]
        assert r.runtime.registration == nri.RegisterPluginRequest(
            plugin_name="gpuslice", plugin_idx="50", nri_version="v0.12.5"
        )
        style = "StateChange" if version["nri_version"] < (0, 12) else "StartContainer"
        assert style in r.runtime.calls


def objection(text: str) -> Refused:
    return refused(Reason.FILES_FAILED, problem=text)


@pytest.mark.parametrize("size", [4000, 4096, 5000, 3 << 20], ids=str)
async def test_a_reply_of_any_size_crosses(size: int) -> None:
    async with session(request_timeout_s=20) as r:
        r.handler.adjustment = nri.ContainerAdjustment(annotations={"size": "x" * size})
        reply = await r.runtime.create(pod(), container())
        assert reply is not None
        assert reply.adjust == r.handler.adjustment


async def test_a_reply_over_the_limit_fails_the_container_and_keeps_the_plugin(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with session(request_timeout_s=20) as r:
        r.handler.adjustment = nri.ContainerAdjustment(annotations={"size": "x" * (4 << 20)})
        with pytest.raises(RequestFailed, match="8: a reply of"):
            await r.runtime.create(pod(), container())
        r.handler.adjustment = None
        assert await r.runtime.create(pod(), container()) is not None
    assert "larger than the protocol allows" in caplog.text


@pytest.mark.parametrize("objects", [False, True])
async def test_a_verdict_may_await_an_examination(objects: bool) -> None:
    async with session() as r:
        looked: list[bool] = []

        async def look() -> None:
            await asyncio.sleep(0)
            looked.append(True)

        r.handler.hooks["look"] = look
        r.handler.objection = objection("a GPU of another's") if objects else None
        if not objects:
            assert await r.runtime.create(pod(), container()) is not None
        else:
            with pytest.raises(RequestFailed, match=r"rejected .*: a GPU of another's"):
                await r.runtime.create(pod(), container())
        assert looked


async def test_a_verdict_that_comes_too_late_fails_the_creation() -> None:
    async with session(request_timeout_s=1) as r:
        r.handler.hooks["look"] = asyncio.Event().wait
        with pytest.raises(RequestFailed, match="did not decide Validate within"):
            await r.runtime.create(pod(), container())
        assert r.runtime.dropped is None


async def test_a_refusal_reaches_the_user_unchanged() -> None:
    async with session() as r:
        r.handler.hooks["create"] = raiser(objection("no GPU-7 on this node: \udcff é"))
        with pytest.raises(RequestFailed) as failed:
            await r.runtime.create(pod(), container())
        made, of = container(), pod()
        assert (failed.value.code, failed.value.message) == (
            2,
            f'gpuslice refuses container "{made.name}" of pod {of.namespace}/{of.name}: the agent'
            " cannot create the container's files: no GPU-7 on this node: \\udcff \\xe9",
        )
        del r.handler.hooks["create"]
        r.handler.hooks["start"] = raiser(objection("the image brings a preload of its own"))
        with pytest.raises(RequestFailed, match=r"2: .*: the image brings a preload of its own"):
            await r.runtime.notify("StartContainer", pod(), container())
        r.handler.objection = objection("another plugin took our mount away")
        with pytest.raises(RequestFailed, match=r"rejected .*: another plugin took our mount away"):
            await r.runtime.create(pod(), container())
        assert r.runtime.dropped is None


@pytest.mark.parametrize("method", ["create", "validate"])
@pytest.mark.parametrize(
    "error", [ValueError("a bug"), asyncio.CancelledError()], ids=["bug", "cancelled"]
)
async def test_a_bug_in_the_handler_fails_the_request_and_is_logged(
    method: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async with session() as r:
        if method == "create":
            r.handler.hooks[method] = raiser(error)
        else:
            r.handler.objection = error
        with pytest.raises(RequestFailed, match=type(error).__name__):
            await r.runtime.create(pod(), container())
        assert r.runtime.dropped is None
        r.handler.hooks.clear()
        r.handler.objection = None
        assert await r.runtime.create(pod(), container()) is not None
    assert "outcome=error" in caplog.text


@pytest.mark.parametrize("hook", [forever, deaf])
async def test_a_late_handler_is_answered_for_before_the_runtime_gives_up(
    hook: Callable[[], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    async with session(request_timeout_s=1.0) as r:
        r.handler.hooks["create"] = hook
        with pytest.raises(RequestFailed, match=r"did not decide .* within 0\.75 s"):
            await r.runtime.create(pod(), container())
        assert r.runtime.dropped is None
        del r.handler.hooks["create"]
        assert await r.runtime.create(pod(), container()) is not None
    assert "outcome=late" in caplog.text


async def test_a_handler_that_answers_at_once_has_the_same_replies(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with session() as r:
        r.handler.at_once = True
        assert await r.runtime.create(pod(), container()) == nri.CreateContainerResponse()
        r.handler.adjustment = nri.ContainerAdjustment(env=[nri.KeyValue(key="A", value="1")])
        reply = await r.runtime.create(pod(), container())
        assert reply is not None and reply.adjust == r.handler.adjustment
        r.handler.objection = objection("no GPU-7 on this node")
        with pytest.raises(RequestFailed, match=r"2: .*: no GPU-7 on this node"):
            await r.runtime.create(pod(), container())
        r.handler.objection = ValueError("a bug")
        with pytest.raises(RequestFailed, match="failed at CreateContainer: ValueError: a bug"):
            await r.runtime.create(pod(), container())
        assert r.runtime.dropped is None
    assert [word for word in caplog.text.split() if word.startswith("outcome=")] == [
        "outcome=refused",
        "outcome=error",
    ]


async def test_a_creation_before_a_farewell_in_one_piece_is_not_begun() -> None:
    async with session() as r:
        r.handler.at_once = True
        r.runtime.send_call("CreateContainer", b"")
        r.runtime.send_call("Shutdown", b"")
        await r.plugin
        assert r.handler.asked == [("synchronize", "")]


async def test_of_a_runtime_that_does_not_read_nothing_more_is_read() -> None:
    """So that the pending answers do not grow in our memory."""
    async with session() as r:
        r.handler.at_once = True
        r.handler.adjustment = nri.ContainerAdjustment(annotations={"size": "x" * (1 << 20)})
        r.runtime.stop_reading()
        for _ in range(200):
            r.runtime.send_call("CreateContainer", b"")
            await asyncio.sleep(0)
        assert len(r.handler.asked) < 100
        r.plugin.cancel()


async def test_a_late_handler_is_cancelled() -> None:
    async with session(request_timeout_s=0.4) as r:
        cancelled = asyncio.Event()

        async def hook() -> None:
            try:
                await forever()
            finally:
                cancelled.set()

        r.handler.hooks["create"] = hook
        with pytest.raises(RequestFailed):
            await r.runtime.create(pod(), container())
        await cancelled.wait()
        assert not r.plugin.done()


async def test_a_failed_synchronize_ends_the_session_with_its_cause() -> None:
    async with rig() as r:
        r.handler.hooks["synchronize"] = raiser(objection("the run directory is not writable"))
        with pytest.raises(RequestFailed, match="not writable"):
            await r.runtime.handshake()
        with pytest.raises(SynchronizeFailed, match="not writable") as failed:
            await r.plugin
        assert isinstance(failed.value.__cause__, Refused)
        assert r.ready == []


async def test_a_failed_synchronize_ends_the_session_though_the_runtime_would_stay() -> None:
    """NRI 0.6.1 keeps such a plugin connected, and never sends it an event."""
    async with rig(nri_version=(0, 6, 1), runtime=("containerd", "devel")) as r:
        r.handler.hooks["synchronize"] = raiser(ValueError("a bug"))
        r.runtime.accept_registration(await r.runtime.receive_registration())
        await r.runtime.configure()
        with pytest.raises(RequestFailed):
            await r.runtime.call("Synchronize", nri.SynchronizeRequest(), nri.SynchronizeResponse)
        with pytest.raises(SynchronizeFailed, match="ValueError: a bug"):
            await r.plugin


async def test_a_synchronize_that_hangs_is_answered_and_ends_the_session() -> None:
    async with rig(request_timeout_s=0.4) as r:
        r.handler.hooks["synchronize"] = forever
        with pytest.raises(RequestFailed, match="did not decide Synchronize"):
            await r.runtime.handshake()
        with pytest.raises(SynchronizeFailed):
            await r.plugin


async def test_a_fault_of_on_ready_is_logged_and_harms_no_session(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ours, theirs = await connected_pair()

    def on_ready(runtime: RuntimeInfo) -> None:
        raise BrokenPipeError(f"no reader for {runtime.name}")

    fake = FakeRuntime(*ours)
    plugin = asyncio.create_task(
        serve(theirs, Recorder(), name="gpuslice", index="50", on_ready=on_ready)
    )
    await fake.handshake()
    assert await fake.create(pod(), container()) is not None
    await fake.close()
    await plugin
    assert "no reader for containerd" in caplog.text


async def test_a_registration_without_an_answer_times_out() -> None:
    async with rig(registration_timeout_s=0.05) as r:
        with pytest.raises(RegistrationTimedOut, match="holding the line"):
            await r.plugin


async def test_a_registration_without_configure_times_out_too() -> None:
    async with rig(registration_timeout_s=0.2) as r:
        r.runtime.accept_registration(await r.runtime.receive_registration())
        with pytest.raises(RegistrationTimedOut):
            await r.plugin


async def test_synchronize_may_take_its_time() -> None:
    """The runtime may delay it until a pod with a long grace period has stopped."""
    async with rig(registration_timeout_s=0.5) as r:
        r.runtime.accept_registration(await r.runtime.receive_registration())
        await r.runtime.configure()
        await asyncio.sleep(0.7)
        await r.runtime.synchronize()
        assert await r.runtime.create(pod(), container()) is not None


async def test_a_rejected_registration_has_the_runtimes_reason() -> None:
    async with rig() as r:
        stream = await r.runtime.receive_registration()
        r.runtime.refuse_registration(stream, 2, 'invalid plugin index: "5"')
        with pytest.raises(RegistrationRejected, match="invalid plugin index") as rejected:
            await r.plugin
        assert rejected.value.code == 2


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack(">II", 1, (4 << 20) + 11),
        struct.pack(">II", 0xFFFFFFFF, 0xFFFFFFFF),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        struct.pack(">II", 2, 10) + struct.pack(">IIBB", 0, 99, 2, 0),
    ],
    ids=["frame-too-long", "all-ones", "http", "unasked-response"],
)
async def test_garbage_ends_the_connection_and_not_the_process(garbage: bytes) -> None:
    async with session() as r:
        r.runtime.send_raw(garbage)
        with pytest.raises(RemoteProtocolError):
            await r.plugin
        with pytest.raises(Dropped):
            await r.runtime.call("Shutdown", nri.Empty(), nri.Empty)


async def test_frames_of_unknown_connections_are_passed_over() -> None:
    async with session() as r:
        r.runtime.send_raw(struct.pack(">II", 7, 5) + b"hello" + struct.pack(">II", 0, 0))
        assert await r.runtime.create(pod(), container()) is not None


async def test_the_end_of_the_connection_cancels_what_runs() -> None:
    async with session() as r:
        cancelled = asyncio.Event()
        entered = asyncio.Event()

        async def hook() -> None:
            entered.set()
            try:
                await forever()
            finally:
                cancelled.set()

        r.handler.hooks["create"] = hook
        r.runtime.send_call("CreateContainer", nri.CreateContainerRequest().SerializeToString())
        await entered.wait()
        await r.runtime.close()
        await r.plugin
        assert cancelled.is_set()


async def test_a_handler_that_cannot_be_cancelled_does_not_hold_the_end_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nri_plugin.nri.connection.CLOSING_TIMEOUT_S", 0.05)
    async with session() as r:
        entered, release = asyncio.Event(), asyncio.Event()

        async def hook() -> None:
            entered.set()
            while not release.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await release.wait()

        r.handler.hooks["create"] = hook
        r.runtime.send_call("CreateContainer", nri.CreateContainerRequest().SerializeToString())
        await entered.wait()
        await r.runtime.close()
        await r.plugin
        release.set()
    assert "outcome=stuck" in caplog.text


async def test_a_stopping_plugin_answers_open_requests_first() -> None:
    async with session(nri_version=(0, 12, 5)) as r:
        asked, may_end = asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            asked.set()
            await may_end.wait()

        r.handler.hooks["create"] = slow
        r.handler.adjustment = nri.ContainerAdjustment(env=[nri.KeyValue(key="A", value="1")])
        creating = asyncio.create_task(r.runtime.create(pod(), container()))
        await asked.wait()
        r.leaving.set()
        await asyncio.sleep(QUIET_S * 3)
        assert not r.plugin.done()
        # Requests that arrive meanwhile are answered, too: validation, here.
        may_end.set()
        reply = await creating
        assert reply is not None and reply.adjust.env[0].key == "A"
        await r.plugin
        with pytest.raises(Dropped):
            await r.runtime.call("CreateContainer", nri.CreateContainerRequest(), nri.Empty)


async def test_a_stopping_plugin_does_not_wait_for_timed_out_handlers() -> None:
    async with session(request_timeout_s=0.5) as r:
        entered, release = asyncio.Event(), asyncio.Event()

        async def stubborn() -> None:
            entered.set()
            while not release.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await release.wait()

        r.handler.hooks["create"] = stubborn
        creating = asyncio.create_task(r.runtime.create(pod(), container()))
        await entered.wait()
        r.leaving.set()
        try:
            with pytest.raises(RequestFailed, match="did not decide"):
                await creating
            async with asyncio.timeout(30):
                await r.plugin
        finally:
            release.set()


@pytest.mark.parametrize("introduced", [True, False])
async def test_a_stopping_plugin_without_requests_exits_at_once(introduced: bool) -> None:
    async with rig() as r:
        if introduced:
            await r.runtime.handshake()
        r.leaving.set()
        await r.plugin


async def test_shutdown_is_answered_and_ends_the_session() -> None:
    async with session() as r:
        await r.runtime.call("Shutdown", nri.Empty(), nri.Empty)
        await r.plugin


async def test_concurrent_requests_are_answered_as_they_are_ready() -> None:
    async with session() as r:
        gate = asyncio.Event()

        async def hook() -> None:
            await gate.wait()

        r.handler.hooks["create"] = hook
        slow = r.runtime.send_call("CreateContainer", b"")
        quick = r.runtime.send_call("StopContainer", b"")
        assert await r.runtime.receive_reply_frame() == (quick, b"")
        gate.set()
        assert await r.runtime.receive_reply_frame() == (slow, b"")


async def test_a_peer_that_does_not_read_does_not_hold_the_end_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("nri_plugin.nri.connection.CLOSING_TIMEOUT_S", 0.05)
    caplog.set_level(logging.CRITICAL)
    async with session(registration_timeout_s=0.5) as r:
        r.handler.adjustment = nri.ContainerAdjustment(annotations={"size": "x" * (3 << 20)})
        for _ in range(3):
            r.runtime.send_call("CreateContainer", b"")
        r.runtime.stop_reading()
        await asyncio.sleep(0.1)
        r.plugin.cancel()
        with pytest.raises(asyncio.CancelledError):
            await r.plugin


@pytest.mark.parametrize(
    ("name", "version", "nri_version"),
    [("containerd", "v1.7.24", (0, 6, 1)), ("cri-o", "1.35.0", (0, 11, 0))],
)
async def test_a_runtime_that_is_not_served_is_refused_by_name_at_configure(
    name: str, version: str, nri_version: tuple[int, int, int]
) -> None:
    """It gets the reason, and the agent's side ends with the same words; nothing is served."""
    async with rig(runtime=(name, version), nri_version=nri_version) as built:
        with pytest.raises(RequestFailed, match=f"{name} {version} is not served") as told:
            await built.runtime.handshake()
        with pytest.raises(RuntimeRefused) as refused:
            await built.plugin
        assert str(refused.value) == told.value.message
        assert (built.handler.asked, built.ready) == ([], [])
