"""Strict mode: a forwarder in the driver's place, with the library's preload and without it.

Programs that no preload reaches must be limited: a namespace of its own, a library opened with
RTLD_DEEPBIND, a path, a program of musl. The limit is 1 GiB of a GPU of 4 GiB.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuslice.contract import forwarder, grant_file
from shim import region
from tests.shim.conftest import GIB, MIB, Grants, Host
from tests.shim.drivers import DRIVERS, SOURCES, build, build_driver

pytestmark = pytest.mark.sim

_LIMITED = "0 2 0 1024"
_UNLIMITED = "0 0 0 4096"
_WAYS = ("name", "default", "path", "deep", "apart", "linked")


@dataclass(frozen=True)
class Strict:
    """A host whose library path has forwarders in place of the driver's files."""

    host: Host
    directory: Path
    programs: Path

    def program(self, way: str) -> Path:
        """Linked with the driver only for that way; else the driver is in no scope yet."""
        return self.programs / ("linked" if way == "linked" else "program")

    @property
    def libcuda(self) -> Path:
        return self.directory / "libcuda.so.1"

    def environment(self, grant: Path | None, *, preload: bool = False) -> Mapping[str, str]:
        return {
            **self.host.environment(grant, preload=preload),
            "LD_LIBRARY_PATH": str(self.directory),
        }

    def run(self, *way: str | Path, grant: Path | None = None, preload: bool = False) -> str:
        done = self.host.run(
            [self.program(str(way[0])), *way],
            grant,
            preload=preload,
            variables={"LD_LIBRARY_PATH": str(self.directory)},
        )
        assert done.stderr == ""
        return done.stdout


def place(directory: Path, build_dir: Path, library: Path, drivers: Path) -> None:
    """Forwarders of both driver libraries in `directory`."""
    template = (build_dir / "lib" / forwarder.TEMPLATE).read_bytes()
    directory.mkdir(parents=True, exist_ok=True)
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1"):
        driver = str(drivers / soname)
        (directory / soname).write_bytes(forwarder.fill(template, soname, str(library), driver))


@pytest.fixture
def strict(host: Host, build_dir: Path, library: Path, tmp_path: Path) -> Strict:
    directory = tmp_path / "drivers"
    place(directory, build_dir, library, host.driver_dir)
    source = SOURCES / "strict_program.c"
    linked = ["-DLINKED", f"-L{host.driver_dir}", "-l:libcuda.so.1"]
    build(tmp_path / "program", source)
    build(tmp_path / "linked", source, *linked)
    return Strict(host, directory, tmp_path)


@pytest.mark.parametrize("way", _WAYS)
def test_a_program_meets_its_limit_without_a_preload(
    way: str, strict: Strict, grants: Grants
) -> None:
    assert strict.run(way, strict.libcuda, grant=grants.make(GIB, GIB)) == _LIMITED
    assert strict.run(way, strict.libcuda) == _UNLIMITED  # no grant: as without the library


@pytest.mark.parametrize("way", _WAYS)
def test_preload_and_forwarder_are_one(way: str, strict: Strict, grants: Grants) -> None:
    """One instance of the library, one charge."""
    grant = grants.make(GIB, GIB)
    assert strict.run(way, strict.libcuda, grant=grant, preload=True) == _LIMITED
    used = {}
    for name, environment in (
        ("preload", strict.host.environment(grant)),
        ("both", strict.environment(grant, preload=True)),
        ("forwarder", strict.environment(grant)),
    ):
        with subprocess.Popen(
            [
                strict.program(way),
                way,
                strict.libcuda if name != "preload" else "libcuda.so.1",
                "hold",
            ],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as running:
            assert running.stdout
            assert running.stdout.readline() == _LIMITED + "\n"
            used[name] = region.status(grant)[0].use.used_bytes
            running.communicate("\n")
    assert used["preload"] == used["both"] == used["forwarder"] >= 128 * MIB
    assert region.status(grant)[0].use.used_bytes in {0, used["both"]}


@pytest.mark.parametrize("strict_mode", [True, False], ids=["strict", "plain"])
def test_shim_run_strict(strict: Strict, strict_mode: bool, tmp_path: Path) -> None:
    """A library that needs the driver, in a namespace of its own: the preload does not apply."""
    driver = [f"-L{strict.host.driver_dir}", "-Wl,--no-as-needed", "-l:libcuda.so.1"]
    plugin = build(tmp_path / "plugin.so", "", *driver)
    option = ["--strict"] if strict_mode else []
    free = ["--context-bytes", "0", "--code-bytes", "0"]
    command = [sys.executable, "-m", "shim", "run", "--memory", "1GiB", *free, *option, "--"]
    for way, meets in ((["name"], True), (["apart", plugin], strict_mode)):
        done = subprocess.run(
            [*command, strict.program("name"), *way],
            cwd=SOURCES.parent.parent.parent,
            env=strict.host.environment(preload=False),
            capture_output=True,
            text=True,
            check=False,
        )
        expected = (_LIMITED if meets else _UNLIMITED, "", 0)
        assert (done.stdout, done.stderr, done.returncode) == expected


def test_a_musl_program_meets_its_limit(build_dir: Path, library: Path, tmp_path: Path) -> None:
    """musl reads no ld.so.preload; a forwarder it must open."""
    if shutil.which("musl-gcc") is None:
        missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        missing("musl-gcc is not installed (make setup installs musl-tools)")
    real = tmp_path / "real"
    real.mkdir()
    driver = build_driver(real, DRIVERS / "musl_driver.c", compiler="musl-gcc")
    shutil.copy(driver, real / "libnvidia-ml.so.1")
    place(tmp_path / "drivers", build_dir, library, real)
    source, flags = SOURCES / "strict_program.c", ["-DLINKED", f"-L{real}", "-l:libcuda.so.1"]
    program = build(tmp_path / "program", source, compiler="musl-gcc")
    linked = build(tmp_path / "linked", source, *flags, compiler="musl-gcc")
    grant = tmp_path / "grant"
    grant.mkdir()
    region.create(grant, [grant_file.Gpu(f"GPU-{'aa' * 16}", GIB, 100, 0)])
    ways: list[list[str | Path]] = [
        [program, "name"],
        [program, "path", tmp_path / "drivers" / "libcuda.so.1"],
        [linked, "linked"],
    ]
    for way in ways:
        for environment, expected in (
            ({"GPUSLICE_DIR": str(grant)}, _LIMITED),
            ({}, _UNLIMITED),
        ):
            done = subprocess.run(
                way,
                env={"LD_LIBRARY_PATH": str(tmp_path / "drivers"), **environment},
                capture_output=True,
                text=True,
                check=False,
            )
            assert (done.stdout, done.stderr, done.returncode) == (expected, "", 0)
