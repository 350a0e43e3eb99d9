"""Fixtures of several areas: the C build, and which tiers this machine can run.

The tests of a tier that cannot run are skipped with a reason. Under CI=true they fail instead.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import functools
import inspect
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from tests import sanitizers
from tests.cluster.installing import install
from tests.support import ROOT
from tests.thorough import WHOLE, is_thorough
from tools import kubernetes

_CLONE_NEWNS = 0x20000
_MS_REC = 0x4000
_MS_PRIVATE = 0x40000
_NUMBERS = count()


# Hypothesis must not fail a test because the machine is busy and therefore slow.
settings.register_profile(
    "busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy machine")


def _not_installed(*tools: str) -> str:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return f"not installed: {', '.join(missing)} (make setup installs them)" if missing else ""


@functools.cache
def _why_not(tier: str) -> str:
    """Return why this machine cannot run the tier, or "" if it can."""
    if tier == "sim":
        return _not_installed("gcc", "cmake", "make")
    if tier == "node":
        without_root = "a private containerd needs root: sudo make test"
        return without_root if os.geteuid() else _not_installed("runc", "unshare", "busybox")
    if tier == "docker":
        without_root = "private Docker daemons need root: sudo make test"
        tools = ("apt-get", "dpkg-deb", "unshare", "busybox", "gcc")
        return without_root if os.geteuid() else _not_installed(*tools)
    if tier == "cluster":
        there = kubernetes.find() and kubernetes.find_helm()
        return "" if there else "no programs of Kubernetes, or no Helm: make setup builds them"
    return _why_not("node") or _why_not("cluster")


@functools.cache
def _own_mounts() -> None:
    """Give this process a mount namespace of its own. Only its children see the mounts that tests
    make. The kernel removes these mounts when the processes end, even if they crash."""
    libc = ctypes.CDLL(None, use_errno=True)
    for failed in (
        libc.unshare(_CLONE_NEWNS),
        libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None),
    ):
        if failed:
            pytest.fail(f"no mount namespace: {os.strerror(ctypes.get_errno())}", pytrace=False)


_LONG = ("test_fuzz.py", "test_wheel.py")
"""Files that start first. A long file that starts last would keep one worker busy while the others
are idle."""

_TOGETHER = {
    "tests/node/test_policy_cluster.py": "API servers with our policies",
    "tests/node/": "a containerd",
    "tests/bystanders/": "API servers with our policies",
    "tests/cluster/admission/": "API servers with our policies",
    "tests/cluster/agent/": "API servers with our policies",
    "tests/cluster/": "an API server",
    "tests/docker/": "Docker daemons",
}
"""The resource that the tests below each path share. One worker runs all tests that share a
resource, so the resource is started only once."""

_APART = "tests/platforms/"
"""Each of these tests has a node of its own, so they may run beside one another."""

_BY_FILE = ("tests/node/agent/", "tests/node/test_fault_matrix.py")
"""Tests of each file share a containerd. The files may run beside one another."""


def pytest_configure() -> None:
    """Handle SIGINT and SIGHUP if they are ignored, as in a shell's background job or under nohup.
    Tests' processes would inherit an ignored signal. exec resets a handled one to its default."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        is_e2e = item.get_closest_marker("e2e") is not None
        if is_thorough(item.nodeid) or (is_e2e and item.nodeid not in WHOLE):
            item.add_marker("thorough")
    items.sort(key=_start_order)


class _Shared(LoadFileScheduling):  # type: ignore[misc]  # untyped
    """Groups tests by shared resource, or else by file. Each test below `_APART` is a group."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(_APART):
            return str(nodeid)
        if nodeid.startswith(_BY_FILE):
            return str(super()._split_scope(nodeid))
        shared = (what for path, what in _TOGETHER.items() if nodeid.startswith(path))
        return next(shared, super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _Shared:
    return _Shared(config, log)


def _start_order(item: pytest.Item) -> int:
    if item.path.name in _LONG:
        return 0
    if item.nodeid.startswith(_BY_FILE):
        return 2
    return 1 if item.nodeid.startswith(tuple(_TOGETHER)) else 3


def pytest_runtest_setup(item: pytest.Item) -> None:
    if sanitizers.PRESET != sanitizers.SHIPPED and item.get_closest_marker("shipped"):
        pytest.skip("of the library as it is shipped: a sanitizer's build is another")
    for tier in ("sim", "node", "docker", "cluster", "e2e"):
        if item.get_closest_marker(tier) is None:
            continue
        if not (reason := _why_not(tier)):
            if tier == "node":
                _own_mounts()
            continue
        if os.environ.get("CI") == "true":
            pytest.fail(f"the {tier} tier may not skip under CI=true: {reason}", pytrace=False)
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def own_bookings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Simulated GPUs of several tests have the same UUIDs. `gpuslice run` makes the directory."""
    directory = tmp_path_factory.getbasetemp() / f"bookings-{next(_NUMBERS)}"
    monkeypatch.setenv(names.ENV_BOOKINGS, str(directory))


@pytest.fixture(scope="session")
def build_dir() -> Path:
    """Configure and build this checkout, and return the build directory, build/dev by default.

    GPUSLICE_PRESET names another preset. Concurrent pytest runs build one after the other.
    """
    return build(sanitizers.PRESET)


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with the chart's objects installed and the admission policies in force."""
    with ControlPlane(tmp_path_factory.mktemp("installed")) as started:
        install(started)
        yield started


@functools.cache
def build(preset: str) -> Path:
    directory = ROOT / "build" / preset
    directory.parent.mkdir(exist_ok=True)
    with (directory.parent / f".{preset}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (
            ["cmake", "--preset", preset],
            ["cmake", "--build", "--preset", preset, "--parallel", "2"],
        ):
            done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
            if done.returncode != 0:
                pytest.fail(f"{' '.join(command)}:\n{done.stdout}{done.stderr}", pytrace=False)
    return directory


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test on a new event loop, which the fixture loop_factory makes if it exists.
    A fixture that is an asynchronous context manager is entered, and the test gets its value."""
    test, given = pyfuncitem.obj, pyfuncitem.funcargs
    if not inspect.iscoroutinefunction(test):
        return None

    async def run() -> None:
        arguments: dict[str, Any] = {}
        async with AsyncExitStack() as stack:
            for name in inspect.signature(test).parameters:
                value = given[name]
                if isinstance(value, AbstractAsyncContextManager):
                    value = await stack.enter_async_context(value)
                arguments[name] = value
            await test(**arguments)

    factory: Callable[[], asyncio.AbstractEventLoop] | None
    factory = given.get("loop_factory")  # type: ignore[assignment]
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run())
    return True
