"""Lookups of symbols in each generation of the driver, with and without the library.

Without the library, cuGetProcAddress finds a symbol for each name, version and flag. With it, the
code and the status must be the same. The answer must be the wrapper if the symbol is a hook, and
otherwise the driver's function.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.shim.conftest import GIB, Grants, Host
from tests.shim.drivers import SOURCES, build, build_driver
from tests.shim.loader.conftest import LIMITED
from tests.shim.loader.every_symbol import exports
from tests.support import ROOT

pytestmark = pytest.mark.sim

_LISTS = ROOT / "simgpu/src/abi"


def _over(generation: int, build_dir: Path, library: Path) -> Host:
    suffix = "" if generation == 13000 else f"-{generation}"
    return Host(library, build_dir / "lib" / f"simgpu{suffix}")


@pytest.fixture(params=[11040, 13000, 14000])
def over(request: pytest.FixtureRequest, build_dir: Path, library: Path) -> Host:
    """A host with the driver of one generation. Tests run once for each generation."""
    return _over(request.param, build_dir, library)


def _ask(host: Host, bases: Path, *, preload: bool, inner: bool) -> list[list[str]]:
    variables = {"PYTHONPATH": str(ROOT), **({"SIMGPU_INNER_ENTRIES": "1"} if inner else {})}
    command: list[str | Path] = [sys.executable, "-m", "tests.shim.loader.every_symbol", bases]
    done = host.run(command, preload=preload, variables=variables)
    assert done.stderr == ""
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.shipped
@pytest.mark.parametrize(
    ("generation", "inner"),
    [(11040, False), (13000, False), (14000, False), (11040, True), (14000, True)],
)
def test_row_31_get_proc_address_of_every_name(
    generation: int, inner: bool, build_dir: Path, library: Path, tmp_path: Path
) -> None:
    host, bases = _over(generation, build_dir, library), tmp_path / "bases"
    rows = "".join((_LISTS / name).read_text() for name in ("cuda.def", "cuda_unsupported.def"))
    found = {base for _, base in re.findall(r"^[A-Z_]+\((\w+), (\w+), \d", rows, re.MULTILINE)}
    bases.write_text("\n".join(sorted({*found, "cuUnseenName", "cuNoSuchName", "cuMemAlloc_v2"})))
    symbols, hooks = exports(host.driver_dir / "libcuda.so.1"), {*exports(library).values()}
    plain = _ask(host, bases, preload=False, inner=False)
    bare = _ask(host, bases, preload=False, inner=True) if inner else plain
    ours = _ask(host, bases, preload=True, inner=inner)
    assert len(plain) == len(bare) == len(ours) > 20_000
    wrapped = set()
    for meant, before, after in zip(plain, bare, ours, strict=True):
        assert before[:-1] == after[:-1]
        symbol = None if meant[-1] == "null" else symbols[int(meant[-1], 16)]
        expected = symbol if symbol in hooks else before[-1]
        assert after[-1] == expected, (symbol, before, after)
        wrapped |= {symbol} & hooks
    assert wrapped == {name for name in hooks if name.startswith("cu")} & set(symbols.values())


@pytest.mark.shipped
def test_row_33_drivers_of_every_generation(over: Host) -> None:
    """A function that the driver lacks is not found, even if the library wraps it."""
    had = {*exports(over.driver_dir / "libcuda.so.1").values()}
    hooks = {name for name in exports(over.library).values() if name.startswith("cu")}
    names = sorted({*hooks, *had, "cuNoSuchName"})
    program = f"""
import ctypes
names = {names!r}
cuda = ctypes.CDLL("libcuda.so.1")
print([name for name in names if not hasattr(cuda, name)])
maps = [line.split()[0] for line in open("/proc/self/maps") if line.endswith("/libvgpu.so\\n")]
begin, end = int(maps[0].split("-")[0], 16), int(maps[-1].split("-")[1], 16)
print([name for name in names if hasattr(cuda, name)
       and begin <= ctypes.cast(getattr(cuda, name), ctypes.c_void_p).value < end])
"""
    lacking, wrapped = over.python(program).stdout.splitlines()
    assert eval(lacking) == sorted({*names} - had)
    assert eval(wrapped) == sorted(hooks & had)


@pytest.mark.shipped
def test_row_33_the_limit_holds_over_every_generation(
    over: Host, host: Host, grants: Grants, tmp_path: Path
) -> None:
    program = build(tmp_path / "program", SOURCES / "strict_program.c")
    done = replace(over, sim_dir=host.sim_dir).run([program, "name"], grants.make(GIB, GIB))
    assert (done.stdout, done.stderr) == (LIMITED, "")


def test_row_33_a_wrapper_of_what_the_driver_lacks_returns_not_found(
    build_dir: Path, library: Path, tmp_path: Path
) -> None:
    """A program that was linked with a newer driver finds the library's wrapper in any case."""
    source = (
        "#include <stdio.h>\nint cuMemAllocAsync(void *, unsigned long, void *);\n"
        'int main(void) { printf("%d", cuMemAllocAsync(0, 1, 0)); return 0; }\n'
    )
    lacking = build_driver(tmp_path, "int cuInit(unsigned flags) { return flags != 0; }\n")
    newer = build_dir / "lib" / "simgpu"
    program = build(tmp_path / "linked", source, f"-L{newer}", "-l:libcuda.so.1")
    done = Host(library, lacking.parent).run([program])
    assert (done.stdout, done.stderr) == ("500", "")
