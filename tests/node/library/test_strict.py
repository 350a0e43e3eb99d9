"""A program that bypasses the preload loads the forwarder in strict mode."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.node.cri import Container
from lab.node.lab import Lab
from tests.shim.drivers import SOURCES, build
from tests.support import GIB

from ..scene import LINKED_PROBE, PROBE, WHOLE, Files, granted, lab_of, probe, said

pytestmark = pytest.mark.node

_PROGRAM = "/opt/test/strict-program"
_PLUGIN = "/opt/test/plugin.so"
_LIMITED = "0 2 0 1024"


@pytest.fixture(scope="module")
def strict_lab(
    build_dir: Path, test_programs: Files, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lab]:
    """Yield a lab whose image has a program that opens the driver in many ways, and a plugin that
    is linked with the driver."""
    built = tmp_path_factory.mktemp("strict")
    program, plugin = built / "program", built / "plugin.so"
    build(program, SOURCES / "strict_program.c")
    driver = [f"-L{build_dir / 'lib' / 'simgpu'}", "-Wl,--no-as-needed", "-l:libcuda.so.1"]
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", plugin, *driver], check=True)
    files = {**test_programs, _PROGRAM: (program, 0o755), _PLUGIN: (plugin, 0o644)}
    with lab_of(files=files) as lab:
        yield lab


@pytest.fixture(params=[True, False], ids=["strict", "plain"])
def container(strict_lab: Lab, request: pytest.FixtureRequest) -> Iterator[tuple[Container, bool]]:
    strict_lab.start_agent(strict=request.param)
    try:
        with granted(strict_lab, size=GIB) as main:
            yield main, request.param
    finally:
        strict_lab.stop_agent()


def _says(container: Container, *command: str) -> str:
    # dlmopen finds the loader for a new link-map namespace only on the library path.
    done = container.exec(["env", "LD_LIBRARY_PATH=/lib64", _PROGRAM, *command])
    assert done.code == 0, done
    return done.out


def test_every_way_to_the_driver_meets_the_limit(
    strict_lab: Lab, container: tuple[Container, bool]
) -> None:
    inside, strict = container
    strict_lab.wait_until(lambda: said(strict_lab, "limit in place", inside), "the proof")
    libcuda = inside.exec(["sh", "-c", "echo /usr/lib/*/libcuda.so.1"]).out.strip()
    for way in (["name"], ["default"], ["path", libcuda], ["deep", libcuda], ["apart", libcuda]):
        assert _says(inside, *way) == _LIMITED, way
    assert probe(inside, [PROBE]).held_to(GIB)
    # The preload does not see a driver that a plugin loads in a link-map namespace of its own.
    past = _says(inside, "apart", _PLUGIN)
    assert past == (_LIMITED if strict else "0 0 0 40960")


@pytest.mark.parametrize("preload", ["libc.so.6", "libcuda.so.1"])
def test_a_preload_of_libc_or_the_driver_that_a_program_sets(
    container: tuple[Container, bool], preload: str
) -> None:
    """The loader searches a preload that a program sets before our library. If the program finds
    the driver's functions through its own preload, only forwarders limit the program."""
    inside, strict = container
    given = ["env", "LD_LIBRARY_PATH=/lib64", f"LD_PRELOAD={preload}"]
    past = PROBE if preload == "libc.so.6" else LINKED_PROBE
    for program in (PROBE, LINKED_PROBE):
        taken = probe(inside, [*given, program])
        if strict or program != past:
            assert taken.held_to(GIB)
        else:
            assert taken.escaped_to(WHOLE)
