"""`make setup`: installs what a fresh machine lacks. It uses only the standard library.

`demo` installs what the demo's first chapter needs. `base` installs all but Kubernetes, Helm and
the images. `all` installs these too, and `test-all` a browser and Kueue. Each step first checks
whether it is needed, so a second run needs no network. Packages are installed by apt-get only here,
and in `.ci/run` if make is missing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools import kubernetes, programs
from tools.building import ProgramsError, output
from tools.images import nvidia_ctk
from tools.lock import LOCK, installer, requirements
from tools.progress import step

ROOT: Final = Path(__file__).resolve().parents[1]
VENV: Final = ROOT / ".venv"
_STAMP: Final = VENV / ".gpuslice-setup"

_PACKAGES: Final = {
    **{name: name for name in ("gcc", "make", "cmake", "ccache", "runc", "openssl")},
    "musl-gcc": "musl-tools",
    "busybox": "busybox-static",
    "ip": "iproute2",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "readelf": "binutils",
    "qemu-aarch64-static": "qemu-user-static",
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu",
    "chromium": "chromium",
}
"""The Debian package of each program that must be on PATH."""

_FILES: Final = {
    Path("/usr/include/stdlib.h"): "libc6-dev",
    Path("/usr/aarch64-linux-gnu/include/stdlib.h"): "libc6-dev-arm64-cross",
    Path("/etc/ssl/certs/ca-certificates.crt"): "ca-certificates",
}

_FOR_TEST_ALL: Final = frozenset({"chromium"})
"""The packages that only `make test-all` needs."""
_FOR_TESTS: Final = frozenset({"musl-tools", "ccache", "qemu-user-static"}) | {
    *("gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"),
    *_FOR_TEST_ALL,
}
"""The packages that only tests need."""
_AS_ROOT: Final = {"runc", "busybox-static", "util-linux", "iproute2", "openssl"}
"""The packages that are needed only by tests and programs that must run as root."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What to install. extras: pyproject's optional dependencies. targets: CMake's; (): all."""

    extras: tuple[str, ...] = ("cli", "lab", "dev", "fuzz")
    targets: tuple[str, ...] = ()
    without: frozenset[str] = _FOR_TEST_ALL
    nvidia: bool = False
    """Whether to install NVIDIA's programs that describe GPUs to a container runtime."""
    kubernetes: bool = False
    kueue: bool = False


GOALS: Final = {
    "demo": Goal(
        extras=("lab",),
        targets=(
            *("vgpu", "vgpu_forwarder", "simgpu_cuda", "simgpu_nvml", "simgpu_smi"),
            *("cuda-probe", "cuda-load"),
        ),
        without=_FOR_TESTS,
    ),
    "base": Goal(nvidia=True),
    "all": Goal(nvidia=True, kubernetes=True),
    "test-all": Goal(nvidia=True, kubernetes=True, kueue=True, without=frozenset()),
}


class SetupError(RuntimeError):
    """A step failed. The text has the problem, and the command that fixes it."""


def missing_packages(without: frozenset[str] = frozenset()) -> list[str]:
    # On Debian, a user's PATH lacks the sbin directories, and runc is in one of them.
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])
    lacking = {package for tool, package in _PACKAGES.items() if not shutil.which(tool, path=path)}
    lacking |= {package for file, package in _FILES.items() if not file.exists()}
    # Debian's python3 needs the package python3-venv to make a virtual environment.
    probe = subprocess.run([sys.executable, "-c", "import ensurepip, venv"], capture_output=True)
    if probe.returncode != 0 and not VENV.exists():
        lacking.add("python3-venv")
    return sorted(lacking - without)


def _run(command: list[str], **environ: str) -> None:
    output(command, SetupError, cwd=ROOT, env={**os.environ, **environ})


def system_packages(without: frozenset[str] = frozenset()) -> None:
    lacking = missing_packages(without)
    if not lacking:
        return
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *lacking]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        advice = f"not installed: {', '.join(lacking)}. Run: sudo {' '.join(install)}\n"
        if set(lacking) <= _FOR_TESTS | _AS_ROOT:
            sys.stderr.write(f"{advice}(the demo and some tests need them; all else works)\n")
            return
        raise SetupError(advice)
    with step(f"installing {' '.join(lacking)}"):
        _run(["apt-get", "update", "--quiet"], DEBIAN_FRONTEND="noninteractive")
        _run(install, DEBIAN_FRONTEND="noninteractive")


def _made_from(extras: Sequence[str]) -> set[str]:
    """Return the inputs of an environment as texts. An environment with more inputs also serves."""
    python = f"{sys.version} in {ROOT}".replace("\n", " ")
    locked = hashlib.sha256((ROOT / LOCK).read_bytes()).hexdigest()
    return {python, f"{LOCK} {locked}", *requirements(ROOT, extras)}


def virtual_environment(extras: Sequence[str]) -> None:
    """Make .venv with the requirements at the lock's versions, and with a path file that names this
    checkout.

    Because of the path file, Python imports the checkout's modules, and an edit has effect at once.
    """
    wanted = _made_from(extras)
    if _STAMP.exists() and wanted <= set(_STAMP.read_text().splitlines()):
        return
    python = VENV / "bin" / "python"
    if not (VENV / "bin" / "pip").exists():  # pip is the last file that venv makes
        with step("making .venv"):
            _run([sys.executable, "-m", "venv", "--clear", str(VENV)])
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    uv = [str(python.with_name("uv")), "pip", "install", "--quiet", "--python", str(python)]
    with step("installing Python packages into .venv") as shown:
        shown.result = f"at the versions of {LOCK}"
        first = VENV / "installer.txt"
        first.write_text(installer(ROOT))
        _run([*pip, "--require-hashes", "--requirement", str(first)])
        try:  # uv takes a tenth of pip's time
            _run([*uv, "--constraint", str(LOCK), *requirements(ROOT, extras)])
        except SetupError:  # pip may have an index in its configuration
            _run([*pip, "--require-hashes", "--requirement", str(LOCK)])
    site = next((VENV / "lib").glob("python3*/site-packages"))
    (site / "gpuslice-checkout.pth").write_text(f"{ROOT}\n")
    # numba-cuda's path file takes 40 ms at each start of Python, which tests start thousands of
    # times. tests/shim/test_clients.py imports the module that the file names.
    (site / "_numba_cuda_redirector.pth").unlink(missing_ok=True)
    _STAMP.write_text("\n".join(sorted(wanted)) + "\n")


def c_libraries(targets: Sequence[str]) -> None:
    _remove_builds_of_another_path()
    named = ["--target", *targets] if targets else []
    with step("building the C libraries"):
        _run(["cmake", "--preset", "dev"])
        parallel = ["--parallel", str(os.cpu_count() or 1)]
        _run(["cmake", "--build", "--preset", "dev", *parallel, *named])


def _remove_builds_of_another_path() -> None:
    """Remove build directories of a checkout that was moved or copied, which CMake refuses."""
    for cache in ROOT.glob("build/*/CMakeCache.txt"):
        if f"CMAKE_HOME_DIRECTORY:INTERNAL={ROOT}\n" not in cache.read_text():
            shutil.rmtree(cache.parent)


def _containerd() -> subprocess.Popen[str] | None:
    """Start to build containerd, if it is missing, while pip waits for the network."""
    if os.geteuid() != 0 or programs.find() is not None:
        return None
    command, pipe = [sys.executable, "-m", "tools.programs"], subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=pipe, stderr=subprocess.STDOUT)


def install(goal: Goal) -> None:
    """Install what the goal needs. Raise SetupError, ProgramsError."""
    system_packages(goal.without)
    containerd = _containerd()
    try:
        virtual_environment(goal.extras)
        c_libraries(goal.targets)
        if containerd is not None:
            with step("building containerd with Go, once"):
                printed, _ = containerd.communicate()
            if containerd.returncode != 0:
                raise SetupError(printed)
    finally:
        if containerd is not None and containerd.poll() is None:
            containerd.terminate()
            containerd.wait()
    if goal.nvidia and os.geteuid() == 0:
        for program in (*nvidia_ctk.PROGRAMS.values(), nvidia_ctk.NVIDIA_CONTAINER_RUNTIME):
            program.ensure()
    if goal.kueue:
        kueue = [str(VENV / "bin" / "python"), "-m", "lab.cluster.kueue"]
        if subprocess.run(kueue, cwd=ROOT, stdout=subprocess.DEVNULL).returncode != 0:
            raise SetupError("Kueue was not built: see above")
    if goal.kubernetes:
        kubernetes.ensure()
        kubernetes.ensure_helm()
        if shutil.which("apt-get") is None:
            sys.stderr.write("no apt-get: the images are not built, and no cluster can run them\n")
            return
        # The cluster's pods run these images. Building them also fills the cache.
        images = [str(VENV / "bin" / "python"), "-m", "tools.images"]
        if subprocess.run(images, cwd=ROOT, stdout=subprocess.DEVNULL).returncode != 0:
            raise SetupError("the images were not built: see above")


def main(arguments: Sequence[str] = ()) -> int:
    """Install a goal of GOALS, by default `all`."""
    try:
        install(GOALS[arguments[0] if arguments else "all"])
    except (SetupError, ProgramsError) as error:
        sys.stderr.write(f"\nsetup: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\nsetup: interrupted; the next one goes on from here\n")
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
