"""Threads allocate memory in every way at once, under ASan with UBSan, and under TSan. The charge
must equal the GPU's memory in use: while allocations exist (apart from the float), after all are
freed, after contexts and code were created and destroyed, and when no context is left."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import build
from tests.shim.conftest import AS_ON_A_GPU, CONTEXT_BYTES, GIB, Grants, simulated, taken, used

pytestmark = pytest.mark.sim

FLOAT_BYTES = 64 << 20


@pytest.mark.parametrize(("preset", "operations"), [("asan", 1000), ("tsan", 600)])
@pytest.mark.parametrize("core_percent", [100, 60])
def test_a_storm_on_every_path_at_once(
    tmp_path: Path, preset: str, operations: int, core_percent: int
) -> None:
    """Some storms have a cap of compute, so that their launches wait for windows."""
    built = build(preset)
    grant = Grants(tmp_path, CONTEXT_BYTES).make(2 * GIB, core_percent=core_percent)
    seen = {}
    with (
        simulated(built, built / "lib" / "libvgpu.so", tmp_path, AS_ON_A_GPU) as host,
        subprocess.Popen(
            [built / "bin" / "vgpu-mixed-storm", str(operations)],
            env=host.environment(grant, preload=False),
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as child,
    ):
        assert child.stdin and child.stdout and child.stderr
        for line in child.stdout:
            seen[line.strip()] = taken(host), used(grant)
            child.stdin.write("\n")
            child.stdin.flush()
        said = child.stderr.read()
    assert (child.returncode, said) == (0, "")
    assert list(seen) == ["live", "freed", "mixed", "gone"] and seen["gone"] == (0, 0)
    held, charged = seen.pop("live")
    assert charged - held in (0, FLOAT_BYTES), (held, charged)
    assert all(held == charged for held, charged in seen.values()), seen
