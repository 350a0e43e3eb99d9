"""The library's cost in facts that hold on a busy machine too; `python -m bench shim` has times."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import starts
from gpuslice.contract import grant_file, names, region_file
from shim import region
from tests.shim.conftest import GIB, MIB, NULL_GPU, Grants, Host
from tests.shim.drivers import SOURCES, build
from tests.support import ROOT

pytestmark = [pytest.mark.sim, pytest.mark.shipped]

_HELLO = '#include <stdio.h>\nint main(void) { return puts("hello") < 0; }\n'


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "grant"
    made.mkdir()
    region.create(made, [grant_file.Gpu(NULL_GPU, 8 * GIB, 100, 0)])
    return made


def _over_null(null_host: Host, directory: Path, source: Path | str) -> Path:
    return build(directory / "program", source, f"-L{null_host.driver_dir}", "-l:libcuda.so.1")


def _without_cuda(kind: str, directory: Path) -> Sequence[str | Path]:
    if kind == "bash":
        return ["bash", "-c", "echo hello"]
    if kind == "ls":
        return ["ls", "/"]
    if kind == "static":
        return [build(directory / "hello", _HELLO, "-static")]
    if kind == "musl":
        return [build(directory / "hello", _HELLO, compiler="musl-gcc")]
    if kind == "python":
        return [sys.executable, "-c", "import ctypes, ssl, subprocess; print('hello')"]
    program = build(directory / "hello", _HELLO)
    os.chown(program, 65534, -1)
    program.chmod(0o755 | stat.S_ISUID)
    return [program]


@pytest.mark.parametrize("kind", ["bash", "ls", "static", "setuid", "musl", "python"])
def test_row_34_programs_without_cuda(
    library: Path, tmp_path: Path, directory: Path, kind: str
) -> None:
    """No driver on disk: no output, no change of the region, and not with a broken grant either."""
    if kind == "setuid" and os.geteuid() != 0:
        pytest.skip("to make a program of another user needs root")
    if kind == "musl" and shutil.which("musl-gcc") is None:
        missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        missing("musl-gcc is not installed (make setup installs musl-tools)")
    command = _without_cuda(kind, tmp_path)
    bare = {"PATH": os.environ["PATH"]}
    under = {**bare, "LD_PRELOAD": str(library), names.ENV_DIR: str(directory)}
    before = (directory / names.FILE_REGION).read_bytes()

    def said(environment: dict[str, str]) -> tuple[int, str, str]:
        done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
        return done.returncode, done.stdout, done.stderr

    assert said(under) == said(bare)
    assert said(under)[::2] == (0, "")
    assert (directory / names.FILE_REGION).read_bytes() == before
    (directory / names.FILE_GRANT).chmod(0o600)
    (directory / names.FILE_GRANT).write_text("not a grant")
    assert said(under) == said(bare)


def test_row_34_nothing_large_is_mapped(library: Path, directory: Path) -> None:
    """The library itself, without grant and region; under a megabyte in all."""

    def maps(environment: dict[str, str]) -> list[tuple[int, str]]:
        listed = subprocess.run(
            ["cat", "/proc/self/maps"], env=environment, text=True, capture_output=True, check=True
        ).stdout
        rows = [line.split() for line in listed.splitlines()]
        return [
            (int(row[0].split("-")[1], 16) - int(row[0].split("-")[0], 16), row[-1]) for row in rows
        ]

    bare = {"PATH": os.environ["PATH"]}
    ours = maps({**bare, "LD_PRELOAD": str(library), names.ENV_DIR: str(directory)})
    extra = sum(size for size, _ in ours) - sum(size for size, _ in maps(bare))
    assert any(name == str(library) for _, name in ours)
    assert 0 < extra < MIB, extra
    assert not [name for _, name in ours if str(directory) in name]


@pytest.mark.parametrize("live", [1, 200_000])
def test_row_36_the_hot_path_makes_no_system_call(
    null_host: Host, tmp_path: Path, directory: Path, live: int
) -> None:
    """Allocations, frees, launches: with one allocation and with many, no system call is made."""
    program = _over_null(null_host, tmp_path, SOURCES / "quiet_calls.c")
    null_host.run([program, str(live)], directory)


def test_row_36_launches_first_launches_and_graphs_make_no_system_call(
    host: Host, grants: Grants, tmp_path: Path
) -> None:
    """Nor for kernels' attributes and graphs' updates: the cost of each is the driver's alone. It
    makes one itself now and then."""
    counter = build(tmp_path / "count", SOURCES / "count_system_calls.c")
    include = f"-I{ROOT / 'simgpu/src'}"
    driver = (f"-L{host.driver_dir}", "-l:libcuda.so.1")
    program = build(tmp_path / "launches", SOURCES / "launch_calls.c", include, *driver)

    def counted(rounds: int, *, preload: bool) -> int:
        command = [str(counter), str(program), str(rounds)]
        return int(host.run(command, grants.make(2 * GIB), preload=preload).stdout)

    def of_the_rounds(*, preload: bool) -> int:
        return counted(300, preload=preload) - counted(10, preload=preload)

    assert of_the_rounds(preload=True) < of_the_rounds(preload=False) + 10


def test_row_37_a_start_costs_a_bounded_number_of_system_calls(
    null_host: Host, tmp_path: Path, directory: Path
) -> None:
    """Whatever the other processes: each slot ever taken is checked once."""
    counter = build(tmp_path / "count", SOURCES / "count_system_calls.c")
    source = "int cuInit(unsigned int);\nint main(void) { return cuInit(0); }\n"
    program = _over_null(null_host, tmp_path, source)

    def counted(*, preload: bool) -> int:
        return int(null_host.run([counter, program], directory, preload=preload).stdout)

    assert counted(preload=True) - counted(preload=False) < 80


def test_row_37_three_hundred_at_once_all_start(
    null_host: Host, build_dir: Path, directory: Path
) -> None:
    """Each attaches, allocates and stays until all have; the region then holds none of them."""
    environment = null_host.environment(directory)
    starts.many(build_dir / "bin" / "bench-cuda-start", environment, 300)
    used = region_file.uses((directory / names.FILE_REGION).read_bytes())[0]
    geometry = region_file.Geometry(1)
    data = (directory / names.FILE_REGION).read_bytes()
    taken = [
        region_file.SLOT.unpack(data, geometry.slots_offset + number * geometry.slot_stride)
        for number in range(400)
    ]
    assert sum(bool(slot["generation"]) for slot in taken) >= 300
    assert used.refused_count == 0
