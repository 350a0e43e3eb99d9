"""Files that may be libraries: gpuslice's own, other projects', damaged ones and garbage."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.contract import library_file
from gpuslice.contract.library_file import CONTRACT, MACHINES, LibraryFileError
from tests.contract.libraries import library

HERE = os.uname().machine
ELSEWHERE = next(name for name in MACHINES if name != HERE)


@pytest.mark.sim
def test_the_built_library_reports_its_contract(build_dir: Path) -> None:
    data = (build_dir / "lib/libvgpu.so").read_bytes()
    assert library_file.parse(data) == library_file.Library(MACHINES[HERE], CONTRACT)
    library_file.check(data, HERE)
    program = (build_dir / "lib/simgpu/libcuda.so.1").read_bytes()
    assert library_file.parse(program).contract is None


def test_another_projects_library_fits_where_no_contract_is_required() -> None:
    library_file.check(library(contract=None), HERE, contract=None)


def changed(at: int, code: str, value: int) -> bytes:
    data = bytearray(library())
    struct.pack_into(code, data, at, value)
    return bytes(data)


BAD = {
    "empty": (b"", "a shared library"),
    "a script": (b"#!/bin/sh\n" * 100, "a shared library"),
    "32 bits": (changed(4, "<B", 1), "ELF of 64 bits"),
    "big-endian": (changed(5, "<B", 2), "little-endian"),
    "a program": (changed(16, "<H", 2), "a shared library"),
    "no segments": (changed(56, "<H", 0), "program headers are missing"),
    "headers beyond the end": (changed(32, "<Q", 1 << 40), "program headers are missing"),
    "half": (library()[: len(library()) - 10], "its end is missing"),
    "another machine": (library(machine=ELSEWHERE), f"for {HERE}, not for {ELSEWHERE}"),
    "an unknown machine": (changed(18, "<H", 8), "not for ELF machine 8"),
    "no contract": (library(contract=None), f"of contract {CONTRACT!r}, not None"),
    "an older contract": (library("grant 0"), "not 'grant 0'"),
}


@pytest.mark.parametrize(("data", "why"), BAD.values(), ids=BAD)
def test_a_file_that_is_no_fitting_library_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(LibraryFileError, match=why):
        library_file.check(data, HERE)


@given(st.integers(0, len(library()) - 1), st.binary(min_size=1, max_size=8), st.booleans())
def test_damage_is_found_or_harmless(at: int, noise: bytes, cut: bool) -> None:
    data = library()
    data = data[:at] + noise + (b"" if cut else data[at + len(noise) :])
    try:
        library_file.check(data, HERE)
    except LibraryFileError:
        return
    assert CONTRACT.encode() in data
