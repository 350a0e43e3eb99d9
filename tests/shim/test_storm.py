"""Every way to allocate memory at once, from several threads, under ASan with UBSan, and under
TSan: the region's figures equal the GPU's memory in use, with allocations left, without any,
while contexts and code are created and destroyed, and at the end."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shim import region
from tests.conftest import build
from tests.shim.conftest import AS_ON_A_GPU, CONTEXT_BYTES, GIB, Grants, Host, simulated

pytestmark = pytest.mark.sim

_OPERATIONS = {"asan": 1000, "tsan": 600}


@pytest.fixture(params=_OPERATIONS)
def storm(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Host, Path, int]]:
    """A host of that build, the program, and each of its threads' number of operations."""
    built = build(str(request.param))
    with simulated(built, built / "lib" / "libvgpu.so", tmp_path, AS_ON_A_GPU) as host:
        yield host, built / "bin" / "vgpu-mixed-storm", _OPERATIONS[str(request.param)]


def _held(host: Host) -> int:
    """Memory in use on the GPU, of all processes."""
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.connect(f"{host.sim_dir}/control.sock")
        daemon.sendall(b'{"op": "status"}\n')
        used = json.loads(daemon.makefile().readline())["gpus"][0]["used_bytes"]
    assert isinstance(used, int)
    return used


@pytest.mark.parametrize("core_percent", [100, 60])
def test_a_storm_on_every_path_at_once(
    storm: tuple[Host, Path, int], grants: Grants, core_percent: int
) -> None:
    """The storm has a share of compute, too. Its launches wait for windows."""
    host, program, operations = storm
    limit = 2 * GIB
    directory = grants.make(limit, core_percent=core_percent, context_bytes=CONTEXT_BYTES)
    seen = {}
    with subprocess.Popen(
        [program, str(operations)],
        env=host.environment(directory, preload=False),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdin and child.stdout and child.stderr
        for line in child.stdout:
            seen[line.strip()] = _held(host), region.status(directory)[0].use.used_bytes
            child.stdin.write("\n")
            child.stdin.flush()
        said = child.stderr.read()
    assert (child.returncode, said) == (0, "")
    assert list(seen) == ["live", "freed", "mixed", "gone"] and seen["gone"] == (0, 0)
    assert all(held == charged for held, charged in seen.values()), seen
