"""Contexts created for OpenGL and VDPAU are contexts: over
tests/shim/c/drivers/display_driver.c."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from contract import grant_file
from shim import region
from tests.shim.conftest import GIB, MIB, Host
from tests.shim.drivers import DRIVERS, build_driver

pytestmark = pytest.mark.sim

_CONTEXT: Final = 300 * MIB
_VDPAU: Final = ", 7, ctypes.byref(context)"


@pytest.fixture(scope="module")
def display_host(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Host:
    driver = build_driver(tmp_path_factory.mktemp("display"), DRIVERS / "display_driver.c")
    return Host(library, driver.parent)


@pytest.mark.parametrize("limit", [GIB, _CONTEXT - 1])
@pytest.mark.parametrize(
    ("call", "display"),
    [
        ("cuGLCtxCreate_v2", ""),
        ("cuVDPAUCtxCreate_v2", _VDPAU),
    ],
)
def test_a_context_for_a_display_is_charged_as_any_other(
    display_host: Host, tmp_path: Path, call: str, display: str, limit: int
) -> None:
    fits = limit >= _CONTEXT
    region.create(
        tmp_path,
        [grant_file.Gpu(f"GPU-{'aa' * 16}", limit, 100, 0, context_bytes=_CONTEXT)],
    )
    display_host.python(
        f"""
import ctypes, os
from pathlib import Path
from shim import region
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
context = ctypes.c_void_p(12345)
def used():
    return region.status(Path(os.environ["GPUSLICE_DIR"]))[0].use.used_bytes
assert cuda.{call}(ctypes.byref(context), 1, 0{display}) == {1 if fits else 2}
assert (used(), context.value) == (0, 12345), "the driver refuses these flags"
assert cuda.{call}(ctypes.byref(context), 0, 0{display}) == {0 if fits else 2}
assert used() == {_CONTEXT if fits else 0}, used()
if {fits}:
    assert cuda.cuCtxDestroy_v2(context) == 0
else:
    assert context.value == 12345
assert used() == 0, used()
""",
        tmp_path,
    )
