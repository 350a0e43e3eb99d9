"""Containers of many kinds that keep to their share: the audit finds nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final

import pytest

from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import Container, Pod, Process
from lab.node.cri_v1.cri_pb2 import CONTAINER_RUNNING
from lab.node.lab import Lab
from tests.support import GIB

from ..scene import LAUNCHER, LINKED_PROBE, OWN, PROBE, SETUID_PROBE, Files, lab_of, probe, sample

pytestmark = pytest.mark.node

_SHARE: Final = 2 * GIB
_LOOKS: Final = 3
_LOOK: Final = "gpuslice_audit_looks_total"
_HOLD: Final = f"exec {PROBE} hold"


def _shell(script: str) -> Process:
    return Process(PYTHON_IMAGE, ["sh", "-c", f"({script}) >/tmp/out 2>&1; sleep 1000000"])


def _python(script: str) -> Process:
    begin = """
import ctypes, multiprocessing, os, subprocess, sys, threading, time
from cuda.bindings import driver as d
def context():
    _, device = d.cuInit(0), d.cuDeviceGet(0)[1]
    d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(device)[1])
def work(size):
    context()
    for _ in range(1000000):
        error, pointer = d.cuMemAlloc(size)
        time.sleep(0.1)
        if error.value == 0:
            d.cuMemFree(pointer)
"""
    return Process(PYTHON_IMAGE, ["python3", "-c", begin + script])


_OPEN: Final = """
code = '''
import ctypes, sys, time
from cuda.bindings import driver as d
d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(d.cuDeviceGet(0)[1])[1])
handle = d.CUipcMemHandle(); ctypes.memmove(handle.getPtr(), bytes.fromhex(sys.argv[1]), 64)
assert d.cuIpcOpenMemHandle(handle, 1)[0].value == 0
time.sleep(1000000)
'''
context()
pointer = d.cuMemAlloc(512 << 20)[1]
handle = d.cuIpcGetMemHandle(pointer)[1]
subprocess.run([sys.executable, "-c", code, ctypes.string_at(handle.getPtr(), 64).hex()])
"""
_LATE_CODE: Final = """
context()
d.cuMemAlloc(d.cuMemGetInfo()[1])
head = b".version 8.0\\n.target sm_80\\n.address_size 64\\n"
size = b"// simgpu: module_bytes=%d\\n" % (100 << 20)
module = d.cuModuleLoadData(head + size + b".visible .entry entry() { ret; }\\n")[1]
function = d.cuModuleGetFunction(module, b"entry")[1]
d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
time.sleep(1000000)
"""

KINDS: Final[Mapping[str, Process]] = {
    "one program": Process(PYTHON_IMAGE, [PROBE, "hold"]),
    "exec after exec": _shell(f"exec sh -c 'sleep 0.5; exec env A=1 {PROBE} hold'"),
    "a child in the background": _shell(f"{PROBE} hold & wait"),
    "forks": _python("context()\nfor _ in range(3): os.fork()\ntime.sleep(1000000)"),
    "a pool": _python("multiprocessing.get_context('spawn').Pool(3).map(time.sleep, [10**6] * 3)"),
    "a pool by fork": _python(
        "multiprocessing.get_context('fork').Pool(3).map(work, [1 << 26] * 3)"
    ),
    "IPC": _python(_OPEN),
    "threads": _python(
        "for _ in range(4): threading.Thread(target=work, args=(1 << 28,)).start()\n"
    ),
    "a setuid program": _shell(f"setpriv --reuid=65534 --clear-groups {SETUID_PROBE} hold"),
    "pipelines": _shell(f"while sleep 0.3; do {PROBE} | cat | grep -c driver; done"),
    "no environment": _shell(f"exec env -i {PROBE} hold"),
    "a static launcher": _shell(f"exec {LAUNCHER} {PROBE} hold"),
    "vfork": _python(f"while True: subprocess.run(['{PROBE}']), time.sleep(0.3)"),
    "nvidia-smi": _shell("while :; do nvidia-smi; sleep 0.2; done"),
    "a linked program": _shell(f"exec {LINKED_PROBE} hold"),
    "a user without rights": Process(PYTHON_IMAGE, [PROBE, "hold"], user=65534, read_only=True),
    "mounts of its own": _shell(
        f"unshare --map-root-user --mount sh -c 'mount -t tmpfs x /tmp && {_HOLD}'"
    ),
    "chroot without a GPU": _shell(
        "mkdir /tmp/r && cp /usr/bin/busybox /tmp/r && chroot /tmp/r /busybox sleep 1000000"
    ),
    "a static program without a GPU": Process(
        PYTHON_IMAGE, ["/usr/bin/busybox", "sleep", "1000000"]
    ),
    "kills": _shell(f"while :; do {PROBE} hold & sleep 1; kill -9 $!; done"),
    "exec of itself": _python(
        "context()\ntime.sleep(1)\nos.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])"
    ),
    "code after the last allocation": _python(_LATE_CODE),
    "restarts": _shell(PROBE),
    "kubectl exec": OWN,
    "init containers": Process(PYTHON_IMAGE, [PROBE, "hold"]),
}


@pytest.fixture(scope="module")
def honest_lab(test_programs: Files) -> Iterator[Lab]:
    with lab_of(((len(KINDS) + 1) * _SHARE,), test_programs) as lab:
        lab.start_agent()
        yield lab


@contextmanager
def _running(lab: Lab, kind: str) -> Iterator[tuple[Pod, Container]]:
    share = [(0, _SHARE, 1)]
    init = {"init": share} if kind == "init containers" else {}
    with lab.pod(f"honest-{[*KINDS].index(kind)}", lab.share({**init, "main": share})) as pod:
        if init:
            first = pod.run("init", OWN)
            assert probe(first).limited_to(_SHARE)
            first.stop()
            first.remove()
        yield pod, pod.run("main", KINDS[kind])


def _live(lab: Lab) -> None:
    """Run a container of each kind until each has lived through _LOOKS looks."""
    with ExitStack() as stack:
        running = {kind: stack.enter_context(_running(lab, kind)) for kind in KINDS}
        begun, attempt = sample(lab, _LOOK), 0
        while sample(lab, _LOOK) < begun + _LOOKS + 1:
            attempt += 1
            assert probe(running["kubectl exec"][1]).limited_to(_SHARE)
            pod, container = running.pop("restarts")
            container.stop()
            container.remove()
            restarted = pod.create("main", KINDS["restarts"], attempt=attempt)
            restarted.start()
            running["restarts"] = pod, restarted
        del running["restarts"]
        states = {kind: container.status().state for kind, (_, container) in running.items()}
        assert states == dict.fromkeys(states, CONTAINER_RUNNING)
    assert "audit finding" not in lab.agent_log.read_text()


def test_no_kind_of_container_is_found(honest_lab: Lab) -> None:
    _live(honest_lab)


@pytest.mark.timeout(4 * 3600)
def test_a_thousand_containers_are_not_found(honest_lab: Lab) -> None:
    for _ in range(1000 // len(KINDS)):
        _live(honest_lab)
