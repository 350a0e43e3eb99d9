"""A process is stopped, and then killed, between any two steps of a driver call's accounting.

test_counter.py tests the steps within the counter, the slots and the shared slots. The steps here
are those around them, from the reservation to the refund. The charge must equal the GPU's use.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gpuslice.gpu.account import Account
from tests.shim.conftest import GIB, MIB, Grants, Host, taken, used
from tests.shim.exact import GRAPHS, PHYSICAL, POOLS
from tests.support import ROOT, until
from tests.talking import UNPAUSING, Talk

pytestmark = pytest.mark.sim

PASSAGES = 2
_EXTERNAL = f"""{PHYSICAL}
def described(fd):
    e = d.CUDA_EXTERNAL_MEMORY_HANDLE_DESC()
    e.type = d.CUexternalMemoryHandleType.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD
    e.handle.fd, e.size = fd, 40 * MIB
    return e
"""
PATHS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "pool": (
        "METER_RESERVED METER_GREW METER_CHARGED",
        POOLS,
        ("a = must(d.cuMemAllocAsync(100 * MIB, 0))", "drop_now(a)"),
    ),
    "graph": (
        "METER_RESERVED METER_GREW METER_CHARGED",
        GRAPHS,
        (
            "e = instantiate(scratch(100 * MIB))",
            "assert launch(e) == OK",
            "must(d.cuGraphExecDestroy(e)); must(d.cuDeviceGraphMemTrim(0))",
        ),
    ),
    "physical": (
        "HOLD_CALLED HOLD_KEPT HOLD_LET HOLD_REFUNDED",
        PHYSICAL,
        (
            "at = reserve(64 * MIB); h = create(40 * MIB)",
            "map(at, h, 40 * MIB); release(h); unmap(at, 40 * MIB)",
        ),
    ),
    "export": (
        "HOLD_CALLED HOLD_KEPT EXPORT_CALLED EXPORT_SHARED EXPORT_KEPT",
        PHYSICAL,
        (
            "h = create(40 * MIB, shareable=FD)",
            "fd = int(must(d.cuMemExportToShareableHandle(h, FD, 0)))",
            "os.close(fd); release(h)",
        ),
    ),
    "external": (
        "HOLD_CALLED HOLD_KEPT EXTERNAL_CALLED HOLD_LET",
        _EXTERNAL,
        (
            "h = create(40 * MIB, shareable=FD)",
            "fd = int(must(d.cuMemExportToShareableHandle(h, FD, 0)))",
            "m = must(d.cuImportExternalMemory(described(fd)))",
            "release(h); must(d.cuDestroyExternalMemory(m))",
        ),
    ),
}
"""For each kind of call: its steps, a program's beginning, and its lines that pass the steps."""
ON_PATHS = [(path, step) for path, (steps, _, _) in PATHS.items() for step in steps.split()]
ALL_STEPS = re.findall(r"STEP\((\w+)\)", (ROOT / "shim/src/os/hook_steps.def").read_text())
STEPS = [step for step in ALL_STEPS if step not in {step for _, step in ON_PATHS}]


@pytest.fixture(scope="session")
def steps_library(build_dir: Path) -> Path:
    """The library, built so that it can stop at steps. GPUSLICE_PRESET may add a sanitizer."""
    build = ["cmake", "--build", str(build_dir), "--target", "vgpu-steps", "--parallel", "2"]
    subprocess.run(build, check=True, capture_output=True)
    return build_dir / "lib" / "tests" / "libvgpu-steps.so"


def _others_go_on(host: Host, directory: Path, bystander: Talk) -> None:
    """Let an existing process and a new one allocate and free, although another is stopped. They
    must not wait for that process (see pauses.py)."""
    assert bystander.ask(f"alloc {20 * MIB}") == "0 1"
    assert bystander.ask("free 1") == "0"
    with host.talker(directory, UNPAUSING) as newcomer:
        assert newcomer.ask(f"alloc {30 * MIB}") == "0 0"
        assert newcomer.ask("free 0") == "0"


def _nothing_is_left(host: Host, directory: Path, judge: Talk, bystander: Talk) -> None:
    """Check that the charge equals the GPU's memory in use, after a search for exited processes."""
    until(
        lambda: judge.ask("info") != "" and used(directory) == taken(host),
        "the charge of what is taken",
    )
    assert bystander.ask("free 0") == "0"
    assert used(directory) == taken(host)


def _stop_once(host: Host, steps_library: Path, directory: Path, step: str, passage: int) -> bool:
    """Stop and kill a process at the passage. Return False if it does not pass that often."""
    with host.talker(directory, UNPAUSING) as bystander:
        assert bystander.ask(f"alloc {50 * MIB}") == "0 0"
        code, handle = bystander.ask("export 0").split()
        assert code == "0"
        allocations = f"alloc {100 * MIB}", f"alloc {8 * GIB}"
        script = (*allocations, "export 0", f"open {handle}", "close 1", "free 0")
        with replace(host, library=steps_library).talker(directory) as subject:
            assert subject.ask(f"stop {step} {passage}") == "0"
            if not any(subject.stops(line) for line in script):
                return False
            _others_go_on(host, directory, bystander)
            assert used(directory) >= taken(host) - 2 * MIB
            subject.kill()
        with host.talker(directory) as judge:
            _nothing_is_left(host, directory, judge, bystander)
    return True


@pytest.mark.parametrize("step", STEPS)
def test_row_21_killed_at_any_step_of_a_call(
    host: Host, grants: Grants, steps_library: Path, step: str
) -> None:
    """Each passage uses a new grant. With the former grant, a refused allocation would first wait
    5 s for the killed process's memory."""
    for passage in range(1, PASSAGES + 1):
        stopped = _stop_once(host, steps_library, grants.make(64 * GIB), step, passage)
        assert stopped or passage > 1, f"the script never passes {step}"


@pytest.mark.parametrize(("path", "step"), ON_PATHS)
def test_row_21_killed_on_any_path(
    gpu_host: Host, grants: Grants, steps_library: Path, path: str, step: str
) -> None:
    """A stopped process uses no more memory than is charged. A killed one leaves no charge."""
    directory = grants.make(64 * GIB)
    _, begin, lines = PATHS[path]
    stopping = replace(gpu_host, library=steps_library)
    with gpu_host.talker(directory, UNPAUSING) as bystander:
        assert bystander.ask(f"alloc {50 * MIB}") == "0 0"
        until(lambda: used(directory) == taken(gpu_host), "a quiet GPU")
        with stopping.serving(begin, directory) as subject:
            subject.do(f"os.environ['VGPU_TEST_STOP'] = '{step} 1'")
            assert any(subject.stops(line) for line in lines), f"never passes {step}"
            _others_go_on(gpu_host, directory, bystander)
            held, charged = taken(gpu_host), used(directory)
            assert charged >= held, (charged, held)
            subject.kill()
        _nothing_is_left(gpu_host, directory, bystander, bystander)


@pytest.mark.parametrize(
    ("calls", "step", "line"),
    [
        (62, "APPLY_DONE 2", "must(d.cuMemAllocAsync(MIB, 0))"),
        (63, "APPLY_OWNED 2", "must(d.cuMemAlloc(3 * GIB - 340 * MIB))"),
    ],
    ids=["charged", "not refunded yet"],
)
def test_a_process_that_stops_with_a_float_in_its_charge_states_it(
    gpu_host: Host, grants: Grants, steps_library: Path, calls: int, step: str, line: str
) -> None:
    """Otherwise the agent would take the float for the driver's memory, and measure too little."""
    directory = grants.make(3 * GIB)
    with replace(gpu_host, library=steps_library).serving(POOLS, directory) as subject:
        subject.do("keep(default, 2**64 - 1); must(d.cuMemAllocAsync(MIB, 0))")
        subject.do(f"for _ in range({calls}): drop(must(d.cuMemAllocAsync(MIB, 0)))")
        subject.do(f"os.environ['VGPU_TEST_STOP'] = '{step}'")
        assert subject.stops(line)
        with Account(directory) as account:
            (charged_bytes,) = account.charged_bytes()
        assert charged_bytes + 64 * MIB == used(directory) == taken(gpu_host) + 64 * MIB
        subject.kill()
