"""The search for containerd's programs and Helm, and their builds by a stand-in for Go."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tools import programs
from tools.building import ProgramsError
from tools.kubernetes import HELM_MODULE, HELM_VERSION, ensure_helm, find_helm
from tools.programs import DEFAULT, RELEASES, of_machine

NAMES = ("containerd", "containerd-shim-runc-v2", "ctr")
_GO = f"""
echo "$CGO_ENABLED $@" >>"$CALLS"
case "$1" in
env) echo go1.27.0 ;;
mod) [ "$2" = tidy ] || echo '{{"GoMod": "{__file__}"}}' ;;
build) echo x >"$GOBIN/helm"; chmod +x "$GOBIN/helm" ;;
install)
   echo "go: downloading m v1"; echo "m/pkg"
   for name in {" ".join(NAMES)}; do echo x >"$GOBIN/$name"; chmod +x "$GOBIN/$name"; done ;;
esac
"""


def _install(directory: Path, scripts: Mapping[str, str]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, script in scripts.items():
        (directory / name).write_text(f"#!/bin/sh\n{script}")
        (directory / name).chmod(0o755)
    return directory


def _machine(tmp_path: Path, **more: str) -> dict[str, str]:
    """Return the environment of a machine with the stand-in for Go and these programs."""
    binaries = _install(tmp_path / "bin", {"go": _GO, **more})
    cache, calls = tmp_path / "cache", tmp_path / "calls"
    path = f"{binaries}:/usr/bin:/bin"
    return {"PATH": path, "GPUSLICE_CACHE": str(cache), "CALLS": str(calls)}


def _calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text().splitlines()


def test_a_named_directory_comes_first_and_needs_all_programs(tmp_path: Path) -> None:
    named = _install(tmp_path / "named", dict.fromkeys(NAMES, ""))
    _install(tmp_path / "cache" / "bin" / DEFAULT.directory, dict.fromkeys(NAMES, ""))
    environ = {"GPUSLICE_BIN": str(named), "GPUSLICE_CACHE": str(tmp_path / "cache")}
    found = programs.find(environ)
    assert found is not None
    assert found["containerd"] == named / "containerd"
    (named / "ctr").unlink()
    with pytest.raises(ProgramsError, match="no ctr there"):
        programs.find(environ)


def test_a_build_appears_whole_and_is_found_again(tmp_path: Path) -> None:
    """A build of containerd may have a newer NRI than containerd's release."""
    environ, release = _machine(tmp_path), RELEASES["2.4-nri"]
    with_nri = programs.ensure(environ, release)
    assert with_nri.directory.name == release.directory != DEFAULT.directory
    assert programs.find(environ) is None
    ctr, nri = (call for call in _calls(tmp_path) if " get " in call)
    assert f"/cmd/ctr@v{release.version}" in ctr
    assert nri.endswith(f"/nri@v{release.nri}")
    built = programs.ensure(environ)
    assert {*NAMES} == {path.name for path in built.directory.iterdir()}
    assert programs.find(environ) == built


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
    said = f"containerd github.com/containerd/containerd/v2 {version} cb1076646aa3"
    own = _install(tmp_path, {**dict.fromkeys(NAMES, ""), "containerd": f"echo '{said}'\n"})
    release = of_machine(own)
    assert release.title == f"containerd {version.removeprefix('v')} ({own})"
    found = (release.config_version, release.has_validator, release.has_socket_dir)
    assert found == (config, validator, socket_dir)
    assert programs.ensure({}, release) == programs.Programs(own)


@pytest.mark.parametrize("older", [{}, {"helm": "echo v3.13.9\n"}], ids=["none", "an older one"])
def test_without_a_recent_helm_it_is_built_once(older: dict[str, str], tmp_path: Path) -> None:
    environ = _machine(tmp_path, **older)
    assert find_helm(environ) is None
    built = ensure_helm(environ)
    assert built == tmp_path / "cache" / "bin" / f"helm-{HELM_VERSION}" / "helm"
    calls = _calls(tmp_path)
    assert calls[-1].startswith("0 build")
    assert calls[-1].endswith(f" {HELM_MODULE}/cmd/helm")
    assert ensure_helm(environ) == find_helm(environ) == built
    assert _calls(tmp_path) == calls
