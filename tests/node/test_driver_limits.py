"""Memory limits that a simulated driver 615 keeps, in real containers, and the same on driver 580.

Each program of docs/security.md that bypasses the library gets exactly its grant from driver 615,
and the whole GPU from driver 580.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

import pytest

from bench.faults.limits import LIMITS, LimitsRig
from bench.faults.outcome import Kind
from bench.faults.report import Column
from gpuslice.contract import names
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import Container, CriError, Pod, Process
from lab.node.lab import DRIVER_LIMITS, Lab

from .scene import (
    DEEPBOUND,
    HALF,
    PLUGIN,
    PROBE,
    STATIC_PROBE,
    WHOLE,
    Files,
    Taken,
    agent_with,
    get,
    granted,
    lab_of,
    probe,
    said,
)

pytestmark = pytest.mark.node

_RAW = """
import json, socket, struct, time
gpu = socket.socket(socket.AF_UNIX)
gpu.connect("/dev/simgpu/0.sock")
def call(op, form="", *fields):
    body = struct.pack("<" + form, *fields)
    gpu.sendall(struct.pack("<II", op, len(body)) + body)
    status, size = struct.unpack("<II", gpu.recv(8, socket.MSG_WAITALL))
    return status, gpu.recv(size, socket.MSG_WAITALL) if size else b""
init, _ = call(1, "IIQ", 7, 1, time.monotonic_ns())
made, context = call(2)
_, memory = call(6)
total, free = struct.unpack("<QQ", memory)
(context,) = struct.unpack("<Q", context[:8])
filled, more = (2 * call(4, "QQ", context, size)[0] for size in (free, 512))
print(json.dumps(dict(driver=True, euid=0, init=init, context=made, total=total, free=free,
                      filled=filled, more=more)))
"""
"""A program that opens the device itself. The status 1 is out of memory, which CUDA calls 2."""
_OWN = ("/lib64/ld-linux-x86-64.so.2", "--preload", "libc.so.6")
"""Libc's own dlopen and dlsym count for the program."""
_FINDS = ("env", "LD_LIBRARY_PATH=/lib64")
"""The plugin finds the driver."""
_TRIES = 5

PREVENTED = {
    "env -i": ["env", "-i", "LD_PRELOAD=", PROBE],
    "a shell that sets LD_PRELOAD": ["sh", "-c", f"LD_PRELOAD= exec {PROBE}"],
    "RTLD_DEEPBIND": [*_FINDS, DEEPBOUND, PLUGIN],
}
"""Programs that the library limits with every driver."""
BYPASSES = {
    "a static program": [STATIC_PROBE],
    "a static program with env -i": ["env", "-i", "LD_PRELOAD=", STATIC_PROBE],
    "its own dlopen": [*_OWN, PROBE],
    "its own dlopen with RTLD_DEEPBIND": [*_FINDS, *_OWN, DEEPBOUND, PLUGIN],
    "the device itself": ["python3", "-c", _RAW],
}
"""Programs that bypass the library: docs/security.md."""


@pytest.fixture(scope="module")
def new_lab(test_programs: Files) -> Iterator[Lab]:
    with lab_of(files=test_programs, new_driver=True) as lab:
        yield lab


@pytest.fixture
def limiting(new_lab: Lab) -> Iterator[Lab]:
    with agent_with(new_lab, *DRIVER_LIMITS):
        yield new_lab


def got(taken: Taken, limit_bytes: int) -> bool:
    """Return whether the probe got this much less a context, and was refused 512 bytes more."""
    return taken.escaped_to(limit_bytes) and taken.more == 2


def started(pod: Pod, process: Process) -> Container:
    """Start a container as the kubelet does, which tries again where the agent was too slow."""
    for attempt in range(_TRIES):
        container = pod.create("main", process, attempt)
        with suppress(CriError):
            container.start()
            return container
        container.remove()
    raise AssertionError("the container does not start")


def test_on_driver_615_each_program_gets_its_grant_and_no_more(limiting: Lab) -> None:
    assert "memory limits: library and driver" in limiting.agent_ready_line()
    with granted(limiting) as container:
        is_set = f"hard limit {HALF >> 20} MiB, used 0 MiB"
        limiting.wait_until(lambda: is_set in limiting.memory_limits(container), "it is set")
        for way, command in BYPASSES.items():
            taken = probe(container, command)
            assert got(taken, HALF), (way, taken)
        for way, command in PREVENTED.items():
            taken = probe(container, command)
            assert taken.held_to(HALF), (way, taken)
        smi = container.exec(["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader"])
        assert smi.out == f"{HALF >> 20} MiB\n"
        labels = 'container="main",limits="driver",namespace="default",pod="granted",uuid="[^"]+"'
        line = rf"^gpuslice_container_gpu_memory_limits_info\{{{labels}\}} 1"
        assert len(re.findall(line, get(limiting, "/metrics")[1], re.MULTILINE)) == 1


def test_on_driver_580_the_same_programs_are_as_the_document_says(lab: Lab) -> None:
    with granted(lab) as container:
        for way, command in BYPASSES.items():
            taken = probe(container, command)
            assert got(taken, WHOLE), (way, taken)
        for way, command in PREVENTED.items():
            taken = probe(container, command)
            assert taken.held_to(HALF), (way, taken)


def test_a_static_entry_point_may_start_unless_it_requests_compute(new_lab: Lab) -> None:
    static = Process(PYTHON_IMAGE, [STATIC_PROBE, "hold"])
    # 100 percent of a smaller allocation is no request of compute.
    uncapped = {**new_lab.share({"main": [(0, HALF, 100)]}), **new_lab.allocated([(0, HALF, 50)])}
    with agent_with(new_lab, *DRIVER_LIMITS, "--unenforceable", "refuse"):
        with new_lab.pod("memory", uncapped) as pod:
            container = started(pod, static)
            full = f"hard limit {HALF >> 20} MiB, used {HALF >> 20} MiB"
            new_lab.wait_until(lambda: full in new_lab.memory_limits(container), "it is full")
        with pytest.raises(CriError, match="must load the library"), granted(new_lab, static):
            pass
    with agent_with(new_lab, *DRIVER_LIMITS), granted(new_lab, static, name="told") as told:
        assert said(new_lab, names.EVENT_LIMIT_NOT_ENFORCEABLE, told)
        assert "limit of compute" in new_lab.agent_log.read_text()


def test_an_old_driver(lab: Lab) -> None:
    """The library alone limits under `auto`. Nothing starts under `driver`."""
    old = "driver: invalid version 580.65.06: must be 615 or newer"
    with agent_with(lab, *DRIVER_LIMITS):
        why = f"the driver's are not available: {old}"
        lab.wait_until(lambda: why in get(lab, "/readyz")[1], "the agent knows the driver")
        assert get(lab, "/readyz")[0] == 200
        with granted(lab) as container:
            assert probe(container).held_to(HALF)
            assert 'limits="library"' in get(lab, "/metrics")[1]
    with agent_with(lab, "--memory-limits", "driver", *DRIVER_LIMITS[2:]):
        refusal = f"--memory-limits=driver: {old}"
        lab.wait_until(lambda: refusal in get(lab, "/readyz")[1], "the node is not ready")
        assert get(lab, "/readyz")[0] == 503
        with pytest.raises(CriError, match="the driver's memory limit cannot be set"), granted(lab):
            pass


@pytest.mark.parametrize("name", LIMITS)
def test_no_container_runs_with_neither_limit(new_lab: Lab, name: str) -> None:
    new_lab.stop_agent()
    with LimitsRig(new_lab, STATIC_PROBE, probe=PROBE) as rig:
        cell = rig.perform(LIMITS[name])
    assert Column(new_lab.release, True, {name: cell}).holds, cell
    assert cell.kinds[Kind.LIMITED]
