"""Shared by node tests: the lab, pods with a share, what programs see, a second NRI plugin."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from gpuslice.contract import names
from gpuslice.contract.overhead import CODE_BYTES
from lab import pages
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.containerd_config import Options
from lab.node.cri import Container, CriError, Process
from lab.node.lab import Lab
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.nri import connection
from nri_plugin.protocol import session_events
from nri_plugin.protocol.session_events import EventMask
from tests.node.table import CONTAINER_ROWS
from tests.support import GIB

QUARTER, HALF, WHOLE = 10 * GIB, 20 * GIB, 40 * GIB
CONTEXT = 300 << 20
"""The size of a context on the simulated host: simgpu/default.toml."""
FLOOR = CONTEXT + CODE_BYTES
"""The charge of a process that has a context and has allocated nothing."""
PROBE = "/opt/test/probe"
LINKED_PROBE = "/opt/test/probe-linked"
SETUID_PROBE = "/opt/test/probe-setuid"
STATIC_PROBE = "/opt/test/probe-static"
"""It contains the simulated driver, so that no library can be loaded before the driver."""
LAUNCHER = "/opt/test/launcher"
LOAD = "/opt/test/cuda-load"
NAMESPACED = "/opt/test/namespaced"
"""Runs the probe of PLUGIN, which is linked with the driver, in an own namespace (dlmopen)."""
DEEPBOUND = "/opt/test/deepbound"
"""Does so with RTLD_DEEPBIND."""
PLUGIN = "/opt/test/plugin.so"
AUDITS = "/opt/test/audits.so"
"""A library that keeps the loader from gpuslice's library (rtld-audit(7))."""
OWN = Process(PYTHON_IMAGE)
NONE = f"{names.ENV_VISIBLE_DEVICES}={names.VISIBLE_DEVICES_NONE}\n"
Files: TypeAlias = Mapping[str, tuple[Path, int]]
"""Files of a lab's images: the path inside, then the file on this machine and its mode."""
Meddling: TypeAlias = Callable[[nri.Container, nri.ContainerAdjustment], None]


def lab_of(
    sizes: Sequence[int] = (WHOLE,),
    files: Files | None = None,
    on_host: bool = False,
    new_driver: bool = False,
    **options: Any,
) -> Lab:
    """Return a lab whose containerd waits long for the agent, because the machine may stall."""
    chosen = Options(request_timeout_s=8, **options)
    return Lab(sizes, files, options=chosen, on_host=on_host, new_driver=new_driver)


@contextmanager
def agent_with(lab: Lab, *options: str | Path, **more: Any) -> Iterator[None]:
    """Run the agent with these options during the block. The fixture `lab` starts it again."""
    lab.stop_agent()
    lab.start_agent(options=options, **more)
    try:
        yield
    finally:
        lab.stop_agent()


def one(lab: Lab, size: int = HALF, gpu: int = 0, core: int = 50) -> Mapping[str, str]:
    """Return the annotations of a pod whose container "main" holds this part of the GPU."""
    return lab.share({"main": [(gpu, size, core)]})


@contextmanager
def granted(
    lab: Lab,
    process: Process = OWN,
    size: int = HALF,
    gpu: int = 0,
    core: int = 50,
    name: str = "granted",
) -> Iterator[Container]:
    """Yield the running container "main" of a new pod, which holds this part of the GPU."""
    with lab.pod(name, one(lab, size, gpu, core)) as pod:
        yield pod.run("main", process)


@contextmanager
def refused(test: str) -> Iterator[None]:
    """Expect a refusal of container "main" with the text that the document has for this test."""
    with pytest.raises(CriError, match='gpuslice refuses container "main"') as refusal:
        yield
    rows = [row for row in CONTAINER_ROWS if row.test == test]
    assert any(row.matches(str(refusal.value)) for row in rows), refusal.value


def refused_at_start(lab: Lab, process: Process, test: str) -> None:
    with lab.pod("refused", one(lab)) as pod:
        container = pod.create("main", process)
        with refused(test):
            container.start()


@dataclass(frozen=True)
class Taken:
    """The probe's output. A code is a CUresult, or -1 if the probe did not reach the step."""

    driver: bool
    euid: int
    init: int
    context: int
    total: int
    free: int
    filled: int
    more: int

    def limited_to(self, limit_bytes: int) -> bool:
        """Return whether the probe saw and allocated this limit, and was refused 512 bytes more."""
        return (self.init, self.total, self.filled, self.more) == (0, limit_bytes, 0, 2)

    def held_to(self, limit_bytes: int) -> bool:
        """Return whether `limited_to` is true, and the free memory before the allocation was the
        limit without FLOOR, whatever other containers use."""
        return self.limited_to(limit_bytes) and self.free == limit_bytes - FLOOR

    def escaped_to(self, gpu_bytes: int) -> bool:
        """Return whether the probe saw and allocated the whole GPU, because it had no library."""
        seen = (self.init, self.total, self.filled)
        return seen == (0, gpu_bytes, 0) and self.free == gpu_bytes - CONTEXT

    def found_it_full(self) -> bool:
        """Return whether not even a context fitted."""
        return (self.init, self.context) == (0, 2)


def probe(container: Container, command: Sequence[str] = (PROBE,)) -> Taken:
    done = container.exec(command)
    assert done.code == 0, done
    return Taken(**json.loads(done.out.splitlines()[-1]))


def hold_all(container: Container) -> None:
    """Start a process that allocates all it can and keeps it. Its ID is in /tmp/pid."""
    script = (
        f"rm -f /tmp/said; {PROBE} hold >/tmp/said 2>&1 & echo $! >/tmp/pid; "
        "until test -s /tmp/said; do :; done"
    )
    assert container.exec(["sh", "-c", script]).code == 0


def said(lab: Lab, what: str, of: Container) -> bool:
    lines = lab.agent_log.read_text().splitlines()
    message = f'msg="{what}"' if " " in what else f"msg={what}"
    return any(message in line and of.id in line for line in lines)


def get(lab: Lab, page: str) -> tuple[int, str]:
    return pages.get(lab.agent_http, page)


def sample(lab: Lab, line: str) -> float:
    """Return the value of this line of the metrics, or 0 if the line is missing."""
    for each in get(lab, "/metrics")[1].splitlines():
        if each.startswith(line + " "):
            return float(each.rpartition(" ")[2])
    return 0.0


@contextmanager
def plugin(lab: Lab, meddle: Meddling, name: str = "other", index: str = "60") -> Iterator[None]:
    """Run a second NRI plugin during the block. `meddle` changes each container's adjustment."""

    def meddler(request: session_events.Request) -> nri.CreateContainerResponse | None:
        if not isinstance(request, session_events.CreateContainer):
            return None
        reply = nri.CreateContainerResponse()
        meddle(request.container, reply.adjust)
        return reply

    ready, loop, leaving = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        await connection.serve(
            await connection.connected(lab.namespace.outside(lab.containerd.paths.nri_socket)),
            meddler,
            name=name,
            index=index,
            wanted_events=EventMask.CREATE_CONTAINER,
            on_ready=lambda _: ready.set(),
            leaving=leaving,
        )

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(30)
        yield
    finally:
        loop.call_soon_threadsafe(leaving.set)
        thread.join()
        loop.close()
