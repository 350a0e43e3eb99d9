"""A process attaches to its region: which directory it uses, and which files it refuses."""

from __future__ import annotations

import binascii
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuslice.contract import grant_file, names, region_file
from tests.shim.region.core import GRANT_ID, LIMIT_BYTES, Box, patch

pytestmark = pytest.mark.sim


def _rewrite_header(box: Box, field: str, value: int) -> None:
    """Change a field of the header, and correct the checksum."""
    header = region_file.HEADER
    packed = header.pack({**header.unpack(box.region.read_bytes()), field: value})[:-4]
    patch(box.region, 0, packed + struct.pack("<I", binascii.crc32(packed)))


def _become_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _tear_both(box: Box) -> None:
    box.set_limit(LIMIT_BYTES)
    box.tear(0)
    box.tear(1)


_GRANT, _REGION = grant_file.FILE_BYTES, region_file.Geometry(1).file_bytes
_VERSION = region_file.VERSION
BROKEN: dict[str, Callable[[Box], object]] = {
    "GRANT_MISSING: it is missing": lambda box: box.grant.unlink(),
    "GRANT_MISSING: its directory is": lambda box: shutil.rmtree(box.directory),
    "GRANT_INVALID: a directory": lambda box: _become_directory(box.grant),
    "GRANT_INVALID: empty": lambda box: os.truncate(box.grant, 0),
    "GRANT_INVALID: short": lambda box: os.truncate(box.grant, _GRANT - 1),
    "GRANT_INVALID: all zeros": lambda box: box.grant.write_bytes(bytes(_GRANT)),
    "GRANT_INVALID: torn in its only copy": lambda box: box.tear(0),
    "GRANT_INVALID: torn in both copies": _tear_both,
    "REGION_MISSING: it is missing": lambda box: box.region.unlink(),
    "REGION_INVALID: a directory": lambda box: _become_directory(box.region),
    "REGION_INVALID: empty": lambda box: os.truncate(box.region, 0),
    "REGION_INVALID: short": lambda box: os.truncate(box.region, _REGION - 1),
    "REGION_INVALID: a damaged header": lambda box: patch(box.region, 50, b"\1"),
    "REGION_INVALID: a wrong checksum": lambda box: patch(
        box.region, region_file.HEADER.size - 4, bytes(4)
    ),
    "REGION_INVALID: another magic": lambda box: _rewrite_header(box, "magic", 7),
    "REGION_INVALID: an older version": lambda box: _rewrite_header(box, "version", 1),
    "REGION_INVALID: a newer version": lambda box: _rewrite_header(box, "version", _VERSION + 1),
    "REGION_INVALID: another grant's": lambda box: _rewrite_header(box, "grant_id", GRANT_ID + 1),
    "REGION_INVALID: of two GPUs": lambda box: box.region.write_bytes(
        region_file.fresh(2, GRANT_ID)
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("look", ["attach", "peek"])
def test_a_broken_file_is_refused_by_name_and_the_process_continues(
    box: Box, look: str, broken: str
) -> None:
    BROKEN[broken](box)
    code = broken.partition(":")[0]
    with box.shell() as shell:
        said = shell.ask(look)
        assert said.startswith(f"{code} ")
        assert str(box.grant if code.startswith("GRANT") else box.region) in said
        assert shell.ask("reserve 0 1") == code
        assert shell.ask("used 0") == "0"


def test_a_repaired_region_is_accepted_by_the_same_process(box: Box) -> None:
    whole = box.region.read_bytes()
    with box.shell() as shell:
        os.truncate(box.region, 10)
        assert shell.ask("attach").startswith("REGION_INVALID")
        box.region.write_bytes(whole)
        assert shell.ask("attach") == "OK"


def test_without_a_directory_no_limit_is_set(box: Box) -> None:
    if os.path.exists(names.CONTAINER_DIR):
        pytest.skip(f"this machine has a {names.CONTAINER_DIR}")
    with box.shell("env", "-u", names.ENV_DIR) as unlimited:
        said = [unlimited.ask(line) for line in ("attach", "peek", "reserve 0 1", "limit 0")]
    assert said == ["UNMANAGED no limit is set"] * 2 + ["UNMANAGED", "0"]


def test_the_containers_directory_outranks_the_environment(box: Box) -> None:
    """An empty /.gpuslice is refused, although GPUSLICE_DIR names a good directory."""
    if os.geteuid() != 0 or os.path.exists(names.CONTAINER_DIR):
        pytest.skip(f"needs root, to mount a root with a {names.CONTAINER_DIR}")
    root = box.directory / "root"
    (root / names.CONTAINER_DIR.lstrip("/")).mkdir(parents=True)
    script = (
        f'cd "{root}" && for d in /*/; do mkdir -p ".$d" && mount --rbind "$d" ".$d"; done; '
        f'exec chroot "{root}" "$@"'
    )
    with box.shell("unshare", "--mount", "sh", "-c", script, "sh") as shell:
        said = shell.ask("attach")
    assert said.startswith("GRANT_MISSING ") and names.CONTAINER_DIR in said


def test_a_fork_child_looks_for_itself(box: Box) -> None:
    with box.shell() as shell:
        assert shell.ask("peek") == "OK"
        assert shell.child("fork attach") == "OK"
