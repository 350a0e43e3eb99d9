"""Finds and builds the programs of Kubernetes, and Helm.

Each program is taken from the directory that $KUBEBUILDER_ASSETS names, else from PATH if its
version is the one that would be built, else from the cache, else it is built (building.py).
Kubernetes' components are one program with several names (components.go), and kubectl is another.
Helm consists mostly of Kubernetes' packages, so both are built from one module, and Go compiles
each package once. Only the standard library is used, for setup.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.building import Build, ProgramsError, build, cache_dir, print_paths, runs

VERSION: Final = "1.36.3"
ETCD_VERSION: Final = "3.6.5"
_MODULE: Final = "k8s.io/kubernetes"
HELM_MODULE: Final = "helm.sh/helm/v4"
HELM_VERSION: Final = "4.2.4"
"""This minor version of Helm requires Kubernetes' libraries of the minor version of VERSION."""
_ETCD_MODULE: Final = "go.etcd.io/etcd/server/v3"
CNI_VERSION: Final = "1.9.1"
_CNI_MODULE: Final = "github.com/containernetworking/plugins"
_CNI_PLACES: Final = {"bridge": "main", "host-local": "ipam", "loopback": "main"}
"""The group of each plugin. A plugin's directory in the module is plugins/GROUP/NAME."""
_REQUIRED: Final = re.compile(r"^\t(\S+) (v\S+)", re.MULTILINE)
_STAGED_VERSION: Final = "v0.0.0"
_DEBUG: Final = re.compile(r"^godebug \(.*?^\)|^godebug .*?$", re.MULTILINE | re.DOTALL)
_STRIPPED: Final = "-s -w"
_COMPONENTS: Final = Path(__file__).with_name("components.go")
_VERSION_OPTIONS: Final = {"kubectl": ("version", "--client"), "helm": ("version", "--short")}
"""The arguments that print the version, of programs that have no --version."""


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """The paths of a cluster's programs, without containerd. cni: the path of each plugin."""

    etcd: Path
    kube_apiserver: Path
    kube_controller_manager: Path
    kube_scheduler: Path
    kubectl: Path
    kubelet: Path
    cni: Mapping[str, Path]


def find(environ: Mapping[str, str] = os.environ) -> Kubernetes | None:
    """Return the programs that this machine has, or None if one is missing. Build nothing."""
    found: dict[str, Path] = {}
    for each in (_KUBERNETES, _ETCD, _CNI):
        there = _find(each, environ)
        if there is None:
            return None
        found |= there
    components = {name.replace("-", "_"): found[name] for name in (*_KUBERNETES.names, "etcd")}
    return Kubernetes(**components, cni={name: found[name] for name in _CNI.names})


def ensure(environ: Mapping[str, str] = os.environ) -> Kubernetes:
    """Return the programs, and build those that are missing. Raise ProgramsError."""
    for each in (_ETCD, _CNI, _KUBERNETES):
        _ensure(each, environ)
    found = find(environ)
    assert found is not None
    return found


def find_helm(environ: Mapping[str, str] = os.environ) -> Path | None:
    found = _find(_HELM, environ)
    return found["helm"] if found else None


def ensure_helm(environ: Mapping[str, str] = os.environ) -> Path:
    """Return Helm. Build it if this machine has none that is new enough. Raise ProgramsError."""
    return _ensure(_HELM, environ)["helm"]


def _ensure(each: _Set, environ: Mapping[str, str]) -> Mapping[str, Path]:
    if found := _find(each, environ):
        return found
    final = cache_dir(environ) / "bin" / each.directory
    title = f"building {each.title}"
    with build(final, title, each.free_bytes_wanted, environ) as under_way:
        each.fill(under_way)
    return {name: final / name for name in each.names}


def _find(each: _Set, environ: Mapping[str, str]) -> Mapping[str, Path] | None:
    found = {name: path for name in each.names if (path := _find_one(name, each, environ))}
    return found if len(found) == len(each.names) else None


def _find_one(name: str, each: _Set, environ: Mapping[str, str]) -> Path | None:
    if assets := environ.get("KUBEBUILDER_ASSETS"):
        named = Path(assets) / name
        if runs(named):
            return named
    if each.version is not None:
        on_path = shutil.which(name, path=environ.get("PATH", ""))
        if on_path is not None and _version_will_do(name, on_path, each.version, environ):
            return Path(on_path)
    cached = cache_dir(environ) / "bin" / each.directory / name
    return cached if runs(cached) else None


def _version_will_do(
    name: str, program: str, wanted: re.Pattern[str], environ: Mapping[str, str]
) -> bool:
    command = [program, *_VERSION_OPTIONS.get(name, ("--version",))]
    done = subprocess.run(command, env=dict(environ), text=True, capture_output=True)
    return done.returncode == 0 and wanted.search(done.stdout) is not None


def _kubernetes(under_way: Build) -> None:
    write_module(under_way)
    flags = f"-X k8s.io/component-base/version.gitVersion=v{VERSION}"
    compile_in(under_way, f"{_MODULE}/cmd/kubectl", "kubectl", flags)
    first, *others = (name for name in _KUBERNETES.names if name != "kubectl")
    compile_in(under_way, ".", first, flags)
    for other in others:
        (under_way.into / other).hardlink_to(under_way.into / first)


def _helm(under_way: Build) -> None:
    write_module(under_way)
    flags = f"-X {HELM_MODULE}/internal/version.version=v{HELM_VERSION}"
    compile_in(under_way, f"{HELM_MODULE}/cmd/helm", "helm", flags)


def _etcd(under_way: Build) -> None:
    """Build etcd. Its package is the root of the module, which `go install` would name v3."""
    under_way.go("mod", "init", "gpuslice.io/lab")
    under_way.go("get", f"{_ETCD_MODULE}@v{ETCD_VERSION}")
    compile_in(under_way, _ETCD_MODULE, "etcd")


def _cni(under_way: Build) -> None:
    under_way.go("mod", "init", "gpuslice.io/lab")
    under_way.go("get", f"{_CNI_MODULE}@v{CNI_VERSION}")
    plugins = [f"{_CNI_MODULE}/plugins/{where}/{name}" for name, where in _CNI_PLACES.items()]
    under_way.go("get", *plugins)
    under_way.go("install", "-v", "-mod=mod", "-trimpath", "-ldflags", _STRIPPED, *plugins)


def compile_in(under_way: Build, package: str, name: str, link_option: str = "") -> None:
    """Compile a program of the build's module."""
    into = str(under_way.into / name)
    flags = f"{_STRIPPED} {link_option}".strip()
    options = ("-v", "-mod=mod", "-trimpath", "-ldflags", flags, "-o", into)
    under_way.go("build", *options, package)


def write_module(under_way: Build) -> None:
    """Write the go.mod from which Kubernetes' programs and Helm are built.

    Kubernetes' own go.mod requires its libraries at v0.0.0 and replaces them by directories that
    its published module lacks. These libraries are published separately, as v0.MINOR.PATCH. Helm
    requires newer versions of some modules. The versions of Kubernetes' release replace them."""
    download = under_way.output("mod", "download", "-json", f"{_MODULE}@v{VERSION}")
    described = re.search(r'"GoMod": "([^"]+)"', download)
    if described is None:
        raise ProgramsError(f"go mod download does not say where {_MODULE} is:\n{download}")
    theirs = Path(described[1]).read_text()
    library_version = "v0." + VERSION.partition(".")[2]
    released = {
        name: library_version if version == _STAGED_VERSION else version
        for name, version in _REQUIRED.findall(theirs)
    }
    debug = _DEBUG.search(theirs)
    lines = [
        "module gpuslice.io/lab",
        "go 1.26",
        debug[0] if debug else "",
        f"require {_MODULE} v{VERSION}",
        f"require {HELM_MODULE} v{HELM_VERSION}",
        *(f"replace {name} => {name} {version}" for name, version in released.items()),
    ]
    (under_way.module / "go.mod").write_text("\n".join(lines) + "\n")
    shutil.copy(_COMPONENTS, under_way.module / "main.go")


@dataclass(frozen=True, slots=True)
class _Set:
    """Programs that are built together. version: matches the version of a usable program on PATH;
    None: do not search PATH, because other programs have these names. free_bytes_wanted: measured
    disk space for modules, Go's build cache and the programs, with a margin."""

    title: str
    directory: str
    names: tuple[str, ...]
    fill: Callable[[Build], None]
    version: re.Pattern[str] | None
    free_bytes_wanted: int


_KUBERNETES: Final = _Set(
    title=f"Kubernetes {VERSION} with Go, once, in 4 GB of disk",
    directory=f"kubernetes-{VERSION}",
    names=("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet"),
    fill=_kubernetes,
    version=re.compile(r"v1\.36\.\d+\b"),
    free_bytes_wanted=5_000_000_000,
)
_HELM: Final = _Set(
    title=f"Helm {HELM_VERSION} with Go, once",
    directory=f"helm-{HELM_VERSION}",
    names=("helm",),
    fill=_helm,
    version=re.compile(r"^v(3\.(1[4-9]|[2-9]\d)|[4-9]\.\d+)\."),
    free_bytes_wanted=2_000_000_000,
)
_ETCD: Final = _Set(
    title=f"etcd {ETCD_VERSION} with Go, once, in 0.6 GB of disk",
    directory=f"etcd-{ETCD_VERSION}",
    names=("etcd",),
    fill=_etcd,
    version=re.compile(r"\b3\.[56]\.\d+\b"),
    free_bytes_wanted=1_000_000_000,
)
_CNI: Final = _Set(
    title=f"CNI's bridge, host-local and loopback {CNI_VERSION} with Go, once, in 0.2 GB of disk",
    directory=f"cni-{CNI_VERSION}",
    names=tuple(_CNI_PLACES),
    fill=_cni,
    version=None,
    free_bytes_wanted=400_000_000,
)


def _paths() -> Sequence[Path]:
    found = ensure()
    return found.kubectl.parent, found.etcd, found.cni["bridge"].parent, ensure_helm()


if __name__ == "__main__":
    sys.exit(print_paths(_paths))
