"""A process stopped, and then killed, between any two steps of a driver call's accounting.

The steps within the counter, the slots and the shared slots are test_counter.py's; these are those
around them: reserved, called, entered, taken, freed, refunded, exported, opened. The GPU's own
figure decides.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.shim.conftest import GIB, MIB, Grants, Host, used
from tests.shim.exact import GRAPHS, PHYSICAL, POOLS
from tests.simgpu.peer import Peer
from tests.support import ROOT, until
from tests.talking import UNPAUSING, Talk

pytestmark = pytest.mark.sim

ALL_STEPS = re.findall(
    r"STEP\((\w+)\)",
    (ROOT / "shim/src/os/hook_steps.def").read_text(),
)
PASSAGES = 2
PATHS = {
    "pool": ("METER_RESERVED", "METER_GREW", "METER_CHARGED"),
    "graph": ("METER_RESERVED", "METER_GREW", "METER_CHARGED"),
    "physical": ("HOLD_CALLED", "HOLD_KEPT", "HOLD_LET", "HOLD_REFUNDED"),
    "export": ("HOLD_CALLED", "HOLD_KEPT", "EXPORT_CALLED", "EXPORT_SHARED", "EXPORT_KEPT"),
    "external": ("HOLD_CALLED", "HOLD_KEPT", "EXTERNAL_CALLED", "HOLD_LET"),
}
"""Programs, each with the line that may stop, and at which steps."""
STEPS = [step for step in ALL_STEPS if not any(step in steps for steps in PATHS.values())]


@pytest.fixture(scope="session")
def steps_library(build_dir: Path) -> Path:
    """The library with test points; for requests with a sanitizer, that build's."""
    build = ["cmake", "--build", str(build_dir), "--target", "vgpu-steps", "--parallel", "2"]
    subprocess.run(build, check=True, capture_output=True)
    return build_dir / "lib" / "tests" / "libvgpu-steps.so"


def _others_go_on(host: Host, directory: Path, bystander: Talk) -> None:
    """An existing process and one that begins; neither waits for another (pauses.py), so that the
    duration depends on the machine alone."""
    assert bystander.ask(f"alloc {20 * MIB}") == "0 1"
    assert bystander.ask("free 1") == "0"
    with host.talker(directory, UNPAUSING) as newcomer:
        assert newcomer.ask(f"alloc {30 * MIB}") == "0 0"
        assert newcomer.ask("free 0") == "0"


def _script(handle: str) -> Sequence[str]:
    """Passes every step: the driver refuses the second allocation."""
    return (
        f"alloc {100 * MIB}",
        f"alloc {8 * GIB}",
        "export 0",
        f"open {handle}",
        "close 1",
        "free 0",
    )


def _gpu_used(host: Host) -> int:
    assert host.sim_dir is not None
    peer = Peer(host.sim_dir / "gpus" / "0.sock")
    try:
        return 4 * GIB - peer.free_bytes()
    finally:
        peer.close()


def _stop_once(host: Host, steps_library: Path, directory: Path, step: str, passage: int) -> bool:
    """False: the script does not pass the step that often."""
    with host.talker(directory, UNPAUSING) as bystander:
        assert bystander.ask(f"alloc {50 * MIB}") == "0 0"
        code, handle = bystander.ask("export 0").split()
        assert code == "0"
        with replace(host, library=steps_library).talker(directory) as subject:
            assert subject.ask(f"stop {step} {passage}") == "0"
            if not any(subject.stops(line) for line in _script(handle)):
                return False
            _others_go_on(host, directory, bystander)
            assert used(directory) >= _gpu_used(host) - 2 * MIB
            subject.kill()
        with host.talker(directory) as judge:
            until(
                lambda: judge.ask("info") != "" and used(directory) == _gpu_used(host),
                f"{step} {passage}: {used(directory)} bytes charged, {_gpu_used(host)} taken",
            )
            assert bystander.ask("free 0") == "0"
            assert used(directory) == _gpu_used(host)
    return True


@pytest.mark.parametrize("step", STEPS)
def test_row_21_killed_at_any_step_of_a_call(
    host: Host, grants: Grants, steps_library: Path, step: str
) -> None:
    """Each passage has a grant of its own: in one where a process was just killed, the refusal of
    the second allocation comes after a wait of 5 s."""
    first = grants.make(64 * GIB)
    assert _stop_once(host, steps_library, first, step, 1), f"the script never passes {step}"
    for passage in range(2, PASSAGES + 1):
        _stop_once(host, steps_library, grants.make(64 * GIB), step, passage)


_EXTERNAL = """
def described(fd):
    e = d.CUDA_EXTERNAL_MEMORY_HANDLE_DESC()
    e.type = d.CUexternalMemoryHandleType.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD
    e.handle.fd, e.size = fd, 40 * MIB
    return e
"""
_LINES: dict[str, tuple[str, tuple[str, ...]]] = {
    "pool": (
        POOLS,
        ("a = must(d.cuMemAllocAsync(100 * MIB, 0))", "drop(a); sync()"),
    ),
    "graph": (
        GRAPHS,
        (
            "e = instantiate(scratch(100 * MIB))",
            "assert launch(e) == OK",
            "must(d.cuGraphExecDestroy(e)); must(d.cuDeviceGraphMemTrim(0))",
        ),
    ),
    "physical": (
        PHYSICAL,
        (
            "at = reserve(64 * MIB); h = create(40 * MIB)",
            "map(at, h, 40 * MIB); release(h); unmap(at, 40 * MIB)",
        ),
    ),
    "export": (
        PHYSICAL,
        (
            "h = create(40 * MIB, shareable=FD)",
            "fd = int(must(d.cuMemExportToShareableHandle(h, FD, 0)))",
            "os.close(fd); release(h)",
        ),
    ),
    "external": (
        PHYSICAL + _EXTERNAL,
        (
            "h = create(40 * MIB, shareable=FD)",
            "fd = int(must(d.cuMemExportToShareableHandle(h, FD, 0)))",
            "m = must(d.cuImportExternalMemory(described(fd)))",
            "release(h); must(d.cuDestroyExternalMemory(m))",
        ),
    ),
}


@pytest.mark.parametrize(
    ("path", "step"), [(path, step) for path, steps in PATHS.items() for step in steps]
)
def test_row_21_killed_on_any_path(
    gpu_host: Host, grants: Grants, steps_library: Path, path: str, step: str
) -> None:
    """Stopped there the process has no more than is charged; killed, it leaves nothing."""
    directory = grants.make(64 * GIB)
    begin, lines = _LINES[path]
    stopping = replace(gpu_host, library=steps_library)
    with gpu_host.talker(directory, UNPAUSING) as bystander:
        assert bystander.ask(f"alloc {50 * MIB}") == "0 0"
        until(lambda: used(directory) == _gpu_used(gpu_host), "a quiet GPU")
        with stopping.serving(begin, directory) as subject:
            subject.do(f"os.environ['VGPU_TEST_STOP'] = '{step} 1'")
            assert any(subject.stops(line) for line in lines), f"never passes {step}"
            _others_go_on(gpu_host, directory, bystander)
            held, charged = _gpu_used(gpu_host), used(directory)
            assert charged >= held, (charged, held)
            subject.kill()
        until(
            lambda: bystander.ask("info") != "" and used(directory) == _gpu_used(gpu_host),
            f"{step}: {used(directory)} charged, {_gpu_used(gpu_host)} taken",
        )
        assert bystander.ask("free 0") == "0"
        assert used(directory) == _gpu_used(gpu_host)
