"""The search for containerd's programs, and their builds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import programs
from tools.building import ProgramsError
from tools.programs import DEFAULT, RELEASES, of_machine

NAMES = ("containerd", "containerd-shim-runc-v2", "ctr")


def _fake(directory: Path, names: tuple[str, ...] = NAMES) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / name).write_text("#!/bin/sh\n")
        (directory / name).chmod(0o755)
    return directory


def test_a_named_directory_comes_first(tmp_path: Path) -> None:
    named, cache = _fake(tmp_path / "named"), tmp_path / "cache"
    _fake(cache / "bin" / DEFAULT.directory)
    found = programs.find({"GPUSLICE_BIN": str(named), "GPUSLICE_CACHE": str(cache)})
    assert found is not None
    assert found["containerd"] == named / "containerd"


def test_a_named_directory_without_the_programs_is_an_error(tmp_path: Path) -> None:
    named = _fake(tmp_path / "named", NAMES[:2])
    with pytest.raises(ProgramsError, match="no ctr there"):
        programs.find({"GPUSLICE_BIN": str(named)})


_WORKING_GO = """#!/bin/sh
echo "$@" >>"$CALLS"
case "$1" in
env) echo go1.27.0 ;;
*) echo "go: downloading m v1"; echo "m/pkg"
   for name in containerd containerd-shim-runc-v2 ctr; do
     echo x >"$GOBIN/$name"; chmod +x "$GOBIN/$name"
   done ;;
esac
"""


def _go(tmp_path: Path, script: str) -> dict[str, str]:
    (tmp_path / "go-bin").mkdir()
    (tmp_path / "go-bin" / "go").write_text(script)
    (tmp_path / "go-bin" / "go").chmod(0o755)
    path = f"{tmp_path / 'go-bin'}:/usr/bin:/bin"
    cache, calls = tmp_path / "cache", tmp_path / "calls"
    return {"PATH": path, "GPUSLICE_CACHE": str(cache), "CALLS": str(calls)}


def test_a_build_appears_whole_and_is_found_again(tmp_path: Path) -> None:
    environ = _go(tmp_path, _WORKING_GO)
    built = programs.ensure(environ)
    assert sorted(path.name for path in built.directory.iterdir()) == sorted(NAMES)
    assert programs.find(environ) == built


def test_a_release_may_be_given_a_newer_nri_than_its_own(tmp_path: Path) -> None:
    environ = _go(tmp_path, _WORKING_GO)
    release = RELEASES["2.4-nri"]
    built = programs.ensure(environ, release)
    assert built.directory.name == release.directory != DEFAULT.directory
    assert programs.find(environ) is None
    calls = (tmp_path / "calls").read_text().splitlines()
    asked = [call for call in calls if call.startswith("get ")]
    assert len(asked) == 2
    assert f"/cmd/ctr@v{release.version}" in asked[0]
    assert asked[1].endswith(f"/nri@v{release.nri}")


@pytest.mark.parametrize(
    ("version", "config", "validator", "socket_dir"),
    [
        ("1.7.20~ds1", 2, False, False),
        ("v2.1.4", 3, False, False),
        ("v2.2.1+ds1", 3, True, False),
        ("v2.10.0", 3, True, True),
    ],
)
def test_this_machines_own_containerd_is_identified_by_its_version(
    tmp_path: Path, version: str, config: int, validator: bool, socket_dir: bool
) -> None:
    own = _fake(tmp_path)
    said = f"containerd github.com/containerd/containerd/v2 {version} cb1076646aa3"
    (own / "containerd").write_text(f"#!/bin/sh\necho '{said}'\n")
    release = of_machine(own)
    assert release.title == f"containerd {version.removeprefix('v')} ({own})"
    assert (release.config_version, release.has_validator) == (config, validator)
    assert release.has_socket_dir == socket_dir
    assert programs.ensure({}, release) == programs.Programs(own)
