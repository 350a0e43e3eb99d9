"""Strict mode: a forwarder in the driver's place, with the library's preload and without it.

Programs that no preload reaches must be limited. They use a linker namespace of their own,
RTLD_DEEPBIND, the driver's path, or musl. The limit is 1 GiB of a GPU of 4 GiB.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpuslice.contract import forwarder, grant_file
from shim import region
from tests.shim.conftest import GIB, MIB, Grants, Host, used
from tests.shim.drivers import DRIVERS, SOURCES, build, build_driver
from tests.shim.loader.conftest import LIMITED

pytestmark = pytest.mark.sim

_UNLIMITED = "0 0 0 4096"
_PROGRAM = SOURCES / "strict_program.c"

Command = Sequence[str | Path]


def _forwarded(host: Host, build_dir: Path, directory: Path) -> Host:
    """Return the host with forwarders in `directory` in place of its two driver libraries."""
    template = (build_dir / "lib" / forwarder.TEMPLATE).read_bytes()
    directory.mkdir()
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1"):
        filled = forwarder.fill(template, soname, str(host.library), str(host.driver_dir / soname))
        (directory / soname).write_bytes(filled)
    return replace(host, driver_dir=directory)


@pytest.fixture
def strict(host: Host, build_dir: Path, tmp_path: Path) -> Host:
    return _forwarded(host, build_dir, tmp_path / "drivers")


@pytest.fixture(params=["name", "default", "path", "deep", "apart", "linked"])
def command(request: pytest.FixtureRequest, host: Host, strict: Host, tmp_path: Path) -> Command:
    """The command of a program that opens the driver or, for `linked`, is linked with it."""
    linked = ["-DLINKED", f"-L{host.driver_dir}", "-l:libcuda.so.1"]
    flags = linked if request.param == "linked" else []
    program = build(tmp_path / "program", _PROGRAM, *flags)
    return [program, request.param, strict.driver_dir / "libcuda.so.1"]


def _said(host: Host, command: Command, grant: Path | None) -> tuple[str, str]:
    done = host.run(command, grant, preload=False)
    return done.stdout, done.stderr


def test_a_program_meets_one_limit_by_preload_and_forwarder(
    command: Command, host: Host, strict: Host, grants: Grants
) -> None:
    """With both a preload and a forwarder, the library is loaded once and charges once."""
    # without a grant, no limit applies
    assert _said(strict, command, None) == (_UNLIMITED, "")
    grant = grants.make(GIB, GIB)
    charges = set()
    for each, preload in ((host, True), (strict, True), (strict, False)):
        driver = "libcuda.so.1" if each is host else command[2]
        with subprocess.Popen(
            [*command[:2], driver, "hold"],
            env=each.environment(grant, preload=preload),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as running:
            assert running.stdout
            assert running.stdout.readline() == LIMITED + "\n"
            charges.add(used(grant))
            assert running.communicate("\n")[0] == ""
    assert len(charges) == 1 and min(charges) >= 128 * MIB
    assert used(grant) in {0, *charges}


@pytest.mark.parametrize("strict_mode", [True, False], ids=["strict", "plain"])
def test_shim_run_strict(host: Host, strict_mode: bool, tmp_path: Path) -> None:
    """A plug-in opened in a linker namespace of its own is limited only by a forwarder."""
    driver = [f"-L{host.driver_dir}", "-Wl,--no-as-needed", "-l:libcuda.so.1"]
    plugin = build(tmp_path / "plugin.so", "", *driver)
    program = build(tmp_path / "program", _PROGRAM)
    free = ["--context-bytes", "0", "--code-bytes", "0", *(["--strict"] if strict_mode else [])]
    shim: Command = [sys.executable, "-m", "shim", "run", "--memory", "1GiB", *free, "--", program]
    for way, meets in ((["name"], True), (["apart", plugin], strict_mode)):
        assert _said(host, [*shim, *way], None) == (LIMITED if meets else _UNLIMITED, "")


def test_a_musl_program_meets_its_limit(build_dir: Path, library: Path, tmp_path: Path) -> None:
    """musl does not read ld.so.preload, but it opens the forwarder."""
    if shutil.which("musl-gcc") is None:
        missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        missing("musl-gcc is not installed (make setup installs musl-tools)")
    real, grant = tmp_path / "real", tmp_path / "grant"
    real.mkdir()
    grant.mkdir()
    driver = build_driver(real, DRIVERS / "musl_driver.c", compiler="musl-gcc")
    shutil.copy(driver, real / "libnvidia-ml.so.1")
    over = _forwarded(Host(library, real), build_dir, tmp_path / "drivers")
    flags = ["-DLINKED", f"-L{real}", "-l:libcuda.so.1"]
    program = build(tmp_path / "program", _PROGRAM, compiler="musl-gcc")
    linked = build(tmp_path / "linked", _PROGRAM, *flags, compiler="musl-gcc")
    region.create(grant, [grant_file.Gpu(f"GPU-{'aa' * 16}", GIB, 100, 0)])
    ways: Sequence[Command] = (
        [program, "name"],
        [program, "path", over.driver_dir / "libcuda.so.1"],
        [linked, "linked"],
    )
    for way in ways:
        assert _said(over, way, grant) == (LIMITED, "")
        assert _said(over, way, None) == (_UNLIMITED, "")
