"""The lab for a module of node tests, and the small C programs that run in its pods."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuslice.contract.overhead import CODE_BYTES
from lab.node.catalogue import OWN_PRELOAD, PYTHON_IMAGE
from lab.node.containerd_config import Options
from lab.node.cri import Container, Process
from lab.node.lab import Lab
from tests.support import GIB as GIB
from tests.support import ROOT

CONTEXT = 300 << 20
"""The size of a context on the simulated host: simgpu/default.toml."""
FLOOR = CONTEXT + CODE_BYTES
"""The charge of a process with a context."""
PROBE = "/opt/test/probe"
LINKED_PROBE = "/opt/test/probe-linked"
SETUID_PROBE = "/opt/test/probe-setuid"
LAUNCHER = "/opt/test/launcher"
LOAD = "/opt/test/cuda-load"

_C = Path(__file__).parent / "c"
_PROBE_SOURCE = ROOT / "simgpu/src/probe.c"
_STRICT = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wstrict-prototypes", "-O1"]


@dataclass(frozen=True)
class Taken:
    """The probe's output; codes are CUresult, -1 if the probe did not reach that step."""

    driver: bool
    euid: int
    init: int
    context: int
    total: int
    free: int
    filled: int
    more: int

    def held_to(self, limit_bytes: int) -> bool:
        """It saw the limit as the GPU's size, allocated all of it, and was refused 512 bytes more.

        All of it is what its context and the allowance for code leave, to the byte, whatever else
        is on the GPU.
        """
        seen = (self.init, self.total, self.filled, self.more)
        return seen == (0, limit_bytes, 0, 2) and self.free == limit_bytes - FLOOR

    def escaped_to(self, gpu_bytes: int) -> bool:
        """It saw the whole GPU, and allocated it: the library was not loaded."""
        seen = (self.init, self.total, self.filled)
        return seen == (0, gpu_bytes, 0) and self.free == gpu_bytes - CONTEXT

    def found_it_full(self) -> bool:
        """Not even a context fitted."""
        return (self.init, self.context) == (0, 2)


def probe(container: Container, command: Sequence[str] = (PROBE,)) -> Taken:
    done = container.exec(command)
    assert done.code == 0, done
    return Taken(**json.loads(done.out.splitlines()[-1]))


def hold_all(container: Container) -> None:
    """A process in the container that allocates all it can and keeps it; its number is in
    /tmp/pid."""
    script = (
        f"rm -f /tmp/said; {PROBE} hold >/tmp/said 2>&1 & echo $! >/tmp/pid; "
        "until test -s /tmp/said; do :; done"
    )
    assert container.exec(["sh", "-c", script]).code == 0


def said(lab: Lab, what: str, of: Container) -> bool:
    """Whether the agent's log has such a message about the container."""
    lines = lab.agent_log.read_text().splitlines()
    message = f'msg="{what}"' if " " in what else f"msg={what}"
    return any(message in line and of.id in line for line in lines)


@pytest.fixture(scope="session")
def test_programs(
    build_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, int]]:
    """Path inside the images: file here, mode."""
    built = tmp_path_factory.mktemp("programs")
    own = ["-shared", "-fPIC"]
    include = f"-I{_PROBE_SOURCE.parent}"
    driver = ["-DLINKED", f"-L{build_dir / 'lib' / 'simgpu'}", "-l:libcuda.so.1", "-ldl"]
    linked = [str(_PROBE_SOURCE), include, "-o", str(built / "linked"), *driver]
    subprocess.run(["gcc", *_STRICT, *linked], check=True)
    plain = [str(_PROBE_SOURCE), include, "-o", str(built / "probe"), "-ldl"]
    subprocess.run(["gcc", *_STRICT, *plain], check=True)
    for name, options in (("launcher", ["-static"]), ("own", own)):
        source = [str(_C / f"{name}.c"), "-o", str(built / name)]
        subprocess.run(["gcc", *_STRICT, *source, *options], check=True)
    return {
        PROBE: (built / "probe", 0o755),
        LINKED_PROBE: (built / "linked", 0o755),
        SETUID_PROBE: (built / "probe", 0o4755),
        LAUNCHER: (built / "launcher", 0o755),
        LOAD: (build_dir / "bin/cuda-load", 0o755),
        OWN_PRELOAD: (built / "own", 0o644),
    }


@pytest.fixture(scope="session")
def bare_lab(build_dir: Path, test_programs: dict[str, tuple[Path, int]]) -> Iterator[Lab]:
    """One GPU of 40 GiB; the agent is as the last test left it."""
    assert build_dir.is_dir()
    # A stall of the machine is no agent that hangs.
    with Lab([40 * GIB], test_programs, options=Options(request_timeout_s=8)) as lab:
        yield lab


@pytest.fixture
def lab(bare_lab: Lab) -> Lab:
    """The lab with its agent serving."""
    if not bare_lab.agent_running:
        bare_lab.start_agent()
    return bare_lab


@pytest.fixture
def half(lab: Lab) -> Iterator[Container]:
    """A running container that holds half of the GPU."""
    with lab.pod("half", lab.share({"main": [(0, 20 * GIB, 50)]})) as pod:
        yield pod.run("main", Process(PYTHON_IMAGE))
