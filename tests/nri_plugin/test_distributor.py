"""`python -m nri_plugin distribute`: the copy, the libraries that it refuses, and the process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuslice.contract import names
from gpuslice.contract.library_file import MACHINES, LibraryFileError
from gpuslice.gpu.driver_root import HostView
from nri_plugin.distributor import Copy, Origin, main, read
from tests.contract.libraries import library
from tests.support import ROOT

NEW, HAMI = library(content=b"new"), library(None)
ELSEWHERE = next(name for name in MACHINES if name != os.uname().machine)


def test_the_copy_is_restored_where_it_differs(tmp_path: Path) -> None:
    """Other projects' distributors overwrite the copy. /usr/local is a link on RHEL CoreOS."""
    (tmp_path / "usr").mkdir()
    (tmp_path / "var/usrlocal").mkdir(parents=True)
    (tmp_path / "usr/local").symlink_to("/var/usrlocal")
    copy = Copy(NEW, Path(names.HOST_LIBRARY), HostView(tmp_path))
    file = tmp_path / "var/usrlocal/vgpu/libvgpu.so"
    copy.restore()
    file.write_bytes(HAMI)
    copy.restore()
    assert file.read_bytes() == NEW
    shutil.rmtree(file.parent)
    inode = [copy.restore() and file.stat().st_ino for _ in range(2)]
    assert inode[0] == inode[1]


def test_a_host_that_does_not_allow_it_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "usr").write_text("in the way")
    copy = Copy(NEW, Path(names.HOST_LIBRARY), HostView(tmp_path))
    assert copy.restore() == copy.restore() > 10
    (line,) = caplog.messages
    assert "Not a directory" in line and "gpuslice's own pods need none" in line
    (tmp_path / "usr").unlink()
    assert copy.restore() < 10
    assert (tmp_path / names.HOST_LIBRARY[1:]).read_bytes() == NEW


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"#!/bin/sh\n", "a shared library"),
        (library(machine=ELSEWHERE), f"not for {ELSEWHERE}"),
        (HAMI, "must be gpuslice's library; for HAMi's set --source hami"),
    ],
)
def test_what_is_no_library_for_this_node_is_refused(data: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "l.so").write_bytes(data)
    with pytest.raises(LibraryFileError, match=why):
        read(tmp_path / "l.so", Origin.GPUSLICE)


def test_the_program_ends_when_it_is_told_to(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nri_plugin", "distribute", "--source", "hami"]
    absent = subprocess.run([*command, "--library=/none"], cwd=ROOT, capture_output=True)
    assert absent.returncode == 2
    problem = b"error: --library: invalid value '/none': must be a readable file: No such"
    assert problem in absent.stderr
    (tmp_path / "l.so").write_bytes(HAMI)
    command += [f"--library={tmp_path / 'l.so'}", f"--host-root={tmp_path}"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "copy of the library written" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.stderr.read().endswith("msg=stopped\n")
    assert process.returncode == 0
    copy = tmp_path / names.HOST_LIBRARY[1:]
    assert (copy.read_bytes(), copy.parent.stat().st_mode & 0o777) == (HAMI, 0o755)


def test_the_copy_is_checked_until_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "l.so").write_bytes(NEW)
    signals = [None, None, signal.SIGTERM]
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: None)
    monkeypatch.setattr(signal, "sigtimedwait", lambda *_: signals.pop(0))
    assert main([f"--library={tmp_path / 'l.so'}", f"--host-root={tmp_path}"]) == 0
    assert not signals
