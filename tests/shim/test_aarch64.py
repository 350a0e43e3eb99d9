"""The library for aarch64 (Grace Hopper nodes): it builds, and its core runs under emulation.

qemu's user mode emulates one process, with threads and with kills between two instructions. It
drops MADV_WIPEONFORK, gives each process another start time, and gives a single thread no atomic
instructions. So forks and races between processes are tested on the host architecture only.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.shim.region.core import Box
from tests.support import ROOT

pytestmark = pytest.mark.sim

_PROGRAMS = ("vgpu-core-test", "vgpu-counter-test", "vgpu-entries-test")
_EMULATORS = ("qemu-aarch64-static", "qemu-aarch64")


@functools.cache
def _built(preset: str, *targets: str) -> Path:
    build = ["--build", "--preset", preset, "--parallel", "2", "--target", *targets]
    for arguments in (["--preset", preset], build):
        subprocess.run(["cmake", *arguments], cwd=ROOT, check=True)
    return ROOT / "build" / preset


def _program(directory: Path, name: str) -> Path:
    """Return a test program that starts like a native one and runs under the emulator."""
    emulator = next(filter(None, map(shutil.which, _EMULATORS)), None)
    if emulator is None:
        missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        missing("no qemu-aarch64 (make setup installs qemu-user-static)")
    binary = _built("aarch64-static", *_PROGRAMS) / "bin" / name
    program = directory / name
    program.write_text(f'#!/bin/sh\nexec {emulator} {binary} "$@"\n')
    program.chmod(0o755)
    return program


def test_the_library_for_aarch64_needs_libc_2_17_and_nothing_else(library: Path) -> None:
    """The library exports the same symbols as for x86-64."""
    ours = _built("aarch64", "vgpu") / "lib" / "libvgpu.so"

    def printed(option: str, file: Path) -> str:
        return subprocess.check_output(["readelf", "--wide", option, file], text=True)

    def exported(file: Path) -> set[str]:
        return {*re.findall(r" GLOBAL +\w+ +\d+ ([\w$.]+)", printed("--dyn-syms", file))}

    assert "AArch64" in printed("--file-header", ours)
    assert re.findall(r"NEEDED.*\[(.*)\]", printed("--dynamic", ours)) == ["libc.so.6"]
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", printed("--dyn-syms", ours))
    assert versions and max((int(major), int(minor)) for major, minor in versions) <= (2, 17)
    assert exported(ours) == exported(library) and "cuMemAlloc_v2" in exported(ours)


@pytest.mark.parametrize(
    "command", [["vgpu-entries-test"], ["vgpu-counter-test", "4", "5000"]], ids=["entries", "words"]
)
def test_a_part_on_aarch64(tmp_path: Path, command: list[str]) -> None:
    """The parts are dlsym.S, and the counter's words used in parallel. On aarch64 too, the
    processor changes a word of 16 bytes as a whole."""
    name, *arguments = command
    subprocess.run([_program(tmp_path, name), *arguments], check=True)


def test_stopped_and_killed_at_the_counters_steps_on_aarch64(tmp_path: Path) -> None:
    """First, threads run. Then a process is stopped and killed at each of the steps below."""
    emulated = Box(tmp_path, _program(tmp_path, "vgpu-core-test"))
    emulated.write()
    assert emulated.run("threads", "8", "500", "1") == ["0"]
    assert emulated.used_seen_afresh() == 0
    steps = ("APPLY_PUBLISHED", "COUNTER_SWAPPED", "HELP_READ", "DROP_SWAPPED")
    assert set(steps) <= set(emulated.run("steps"))
    for step in steps:
        emulated.write()
        with emulated.shell() as subject:
            stopped = subject.stops_at(step, 1, "attach", "reserve 0 1000", "refund 0 400")
            assert stopped or step == "DROP_SWAPPED"
            assert emulated.used_without(subject) == 0
