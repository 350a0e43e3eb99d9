"""Where the control plane's programs are looked for, and from what module they are built."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpu.lab import kubernetes
from simgpu.lab.building import ProgramsError

BUILT = {
    f"kubernetes-{kubernetes.VERSION}": ("kube-apiserver", "kube-scheduler", "kubectl"),
    f"etcd-{kubernetes.ETCD_VERSION}": ("etcd",),
}


def _program(path: Path, says: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


def _cache(tmp_path: Path) -> dict[str, str]:
    for directory, programs in BUILT.items():
        for name in programs:
            _program(tmp_path / "cache" / "bin" / directory / name)
    return {"GPUSLICE_CACHE": str(tmp_path / "cache"), "PATH": ""}


def test_the_cache_serves_where_nothing_else_does(tmp_path: Path) -> None:
    environ = _cache(tmp_path)
    found = kubernetes.find(environ)
    assert found is not None
    assert found.etcd == tmp_path / "cache" / "bin" / f"etcd-{kubernetes.ETCD_VERSION}" / "etcd"
    found.kubectl.unlink()
    assert kubernetes.find(environ) is None


def test_assets_outrank_the_cache_each_program_by_itself(tmp_path: Path) -> None:
    """The assets that envtest downloads have no kube-scheduler."""
    environ = _cache(tmp_path) | {"KUBEBUILDER_ASSETS": str(tmp_path / "assets")}
    named = {name: _program(tmp_path / "assets" / name) for name in ("etcd", "kube-apiserver")}
    found = kubernetes.find(environ)
    assert found is not None
    assert (found.etcd, found.kube_apiserver) == (named["etcd"], named["kube-apiserver"])
    assert found.kube_scheduler.parent.name == f"kubernetes-{kubernetes.VERSION}"


@pytest.mark.parametrize(
    ("name", "says", "will_do"),
    [
        ("kube-apiserver", "Kubernetes v1.36.0", True),
        ("kube-apiserver", "Kubernetes v1.35.2", False),
        ("kubectl", "Client Version: v1.36.12", True),
        ("etcd", "etcd Version: 3.5.21", True),
        ("etcd", "etcd Version: 3.4.23", False),
        ("etcd", "", False),
    ],
)
def test_a_program_on_path_serves_if_its_version_will_do(
    tmp_path: Path, name: str, says: str, will_do: bool
) -> None:
    own = _program(tmp_path / "own" / name, says)
    found = kubernetes.find(_cache(tmp_path) | {"PATH": str(own.parent)})
    assert found is not None
    assert (getattr(found, name.replace("-", "_")) == own) is will_do


_GO = """#!/bin/sh
case "$1 $2" in
"env GOVERSION") echo go1.26.8 ;;
"mod download") echo '{"GoMod": "'$THEIRS'"}' ;;
"mod tidy") cp go.mod $MADE ;;
"install -v") for name in kube-apiserver kube-scheduler kubectl; do
    echo x >"$GOBIN/$name"; chmod +x "$GOBIN/$name"; done ;;
build*) $FAIL; for into in "$@"; do case "$into" in
    */.building-*/etcd) echo x >"$into"; chmod +x "$into" ;; esac; done ;;
esac
"""

_THEIRS = """module k8s.io/kubernetes
godebug default=go1.26
require k8s.io/api v0.0.0
replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/kubelet => ./staging/src/k8s.io/kubelet
)
"""


def _building(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "go").mkdir()
    _program(tmp_path / "go" / "go").write_text(_GO)
    (tmp_path / "theirs").write_text(_THEIRS)
    return {
        "GPUSLICE_CACHE": str(tmp_path / "cache"),
        "PATH": f"{tmp_path / 'go'}:/usr/bin:/bin",
        "THEIRS": str(tmp_path / "theirs"),
        "MADE": str(tmp_path / "made"),
        "FAIL": "true",
    }


def test_what_is_missing_is_built_and_found_again(tmp_path: Path) -> None:
    environ = _building(tmp_path)
    built = kubernetes.ensure(environ)
    assert kubernetes.find(environ) == built
    made = (tmp_path / "made").read_text().splitlines()
    assert "replace k8s.io/kubelet => k8s.io/kubelet v0.36.3" in made
    assert "godebug default=go1.26" in made
    assert "tool k8s.io/kubernetes/cmd/kube-scheduler" in made


def test_a_failed_build_leaves_what_was_built_before_it_alone(tmp_path: Path) -> None:
    environ = _building(tmp_path) | {"FAIL": "exit 3"}
    with pytest.raises(ProgramsError, match=r"go build .* failed"):
        kubernetes.ensure(environ)
    assert [path.name for path in (tmp_path / "cache" / "bin").iterdir()] == ["kubernetes-1.36.3"]


NODE = {
    f"kubernetes-node-{kubernetes.VERSION}": ("kube-controller-manager", "kubelet"),
    f"cni-{kubernetes.CNI_VERSION}": ("bridge", "host-local", "loopback"),
}


def test_a_nodes_programs_are_looked_for_by_themselves(tmp_path: Path) -> None:
    environ = _cache(tmp_path)
    assert kubernetes.find_node(environ) is None
    for directory, programs in NODE.items():
        for name in programs:
            _program(tmp_path / "cache" / "bin" / directory / name)
    found = kubernetes.find_node(environ)
    assert found is not None
    assert found.kubelet.parent.name == f"kubernetes-node-{kubernetes.VERSION}"
    assert set(found.cni) == {"bridge", "host-local", "loopback"}


def test_what_path_calls_bridge_is_no_cni_plugin(tmp_path: Path) -> None:
    own = _program(tmp_path / "own" / "bridge", "bridge utility, iproute2-6.1.0")
    environ = _cache(tmp_path) | {"PATH": str(own.parent)}
    for directory, programs in NODE.items():
        for name in programs:
            _program(tmp_path / "cache" / "bin" / directory / name)
    found = kubernetes.find_node(environ)
    assert found is not None
    assert found.cni["bridge"] != own


_NODE_GO = """#!/bin/sh
case "$1 $2" in
"env GOVERSION") echo go1.26.8 ;;
"mod download") echo '{"GoMod": "'$THEIRS'"}' ;;
"install -v") for tool in "$@"; do case "$tool" in */cmd/*|*/plugins/*/*)
    name=$(basename "$tool"); echo x >"$GOBIN/$name"; chmod +x "$GOBIN/$name" ;; esac; done ;;
esac
"""


def test_a_nodes_programs_are_built_and_found_again(tmp_path: Path) -> None:
    environ = _building(tmp_path)
    _program(tmp_path / "go" / "go").write_text(_NODE_GO)
    built = kubernetes.ensure_node(environ)
    assert kubernetes.find_node(environ) == built
    assert kubernetes.find(environ) is None
