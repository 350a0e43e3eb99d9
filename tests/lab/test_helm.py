"""Helm: where it is looked for, and how it is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.kubernetes import HELM_MODULE, HELM_VERSION, ensure_helm, find_helm

_GO = """#!/bin/sh
echo "$CGO_ENABLED $@" >>"$CALLS"
case "$1" in
env) echo go1.27.0 ;;
mod) [ "$2" = tidy ] || echo '{"GoMod": "'$THEIRS'"}' ;;
build) echo x >"$GOBIN/helm"; chmod +x "$GOBIN/helm" ;;
esac
"""


def _machine(tmp_path: Path, on_path: str = "") -> dict[str, str]:
    """A machine with this Go and, if on_path is given, a Helm that says it."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    scripts = {"go": _GO} | ({"helm": f"#!/bin/sh\necho '{on_path}'\n"} if on_path else {})
    for name, script in scripts.items():
        (binaries / name).write_text(script)
        (binaries / name).chmod(0o755)
    return {
        "PATH": f"{binaries}:/usr/bin:/bin",
        "GPUSLICE_CACHE": str(tmp_path / "cache"),
        "THEIRS": __file__,
        "CALLS": str(tmp_path / "calls"),
    }


@pytest.mark.parametrize("said", ["", "v3.13.9"])
def test_without_a_recent_helm_it_is_built_once(said: str, tmp_path: Path) -> None:
    environ = _machine(tmp_path, said)
    assert find_helm(environ) is None
    built = ensure_helm(environ)
    assert built == tmp_path / "cache" / "bin" / f"helm-{HELM_VERSION}" / "helm"
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[-1].startswith("0 build")
    assert calls[-1].endswith(f" {HELM_MODULE}/cmd/helm")
    assert ensure_helm(environ) == find_helm(environ) == built
    assert (tmp_path / "calls").read_text().splitlines() == calls
