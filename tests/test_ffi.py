"""gpuslice.ffi: the committed modules match the `.h` files, and libc's calls report errors."""

from __future__ import annotations

import errno
from pathlib import Path

from gpuslice.ffi import generate, libc


def test_generated_modules_are_current(tmp_path: Path) -> None:
    generate.write(tmp_path)
    written = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert written == {file.name: file.read_text() for file in generate.PLACE.glob("*_ffi.py")}


def test_a_call_that_fails_has_its_errno(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    assert libc.LIBC.umount2(bytes(absent), 0) == -1
    error = libc.error(absent)
    assert (error.errno, error.filename) in {
        (errno.ENOENT, str(absent)),
        (errno.EPERM, str(absent)),
    }
