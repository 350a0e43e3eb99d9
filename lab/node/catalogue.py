"""The lab's images, which are made from files of this machine.

No image contains an NVIDIA library. A container gets libcuda only together with a GPU.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from gpuslice.contract import names
from lab.node.containerd_config import PAUSE_IMAGE
from tools.images.oci import Image, Layer

PYTHON_IMAGE: Final = "docker.io/local/python:1"
"""Python, NVIDIA's cuda-bindings and nvidia-ml-py, a shell and coreutils."""
BUSYBOX_IMAGE: Final = "docker.io/library/busybox:latest"
"""The image that manifests call busybox. Its shell, bash and most tools are linked with glibc, so
that they load a preloaded library. The other tools are busybox's own."""
DEBIAN_IMAGE: Final = "docker.io/library/debian:12-slim"
"""BUSYBOX_IMAGE's content, for manifests whose image must have glibc in any cluster."""
_STAND_INS: Final[Mapping[str, Sequence[str]]] = {
    "docker.io/library/ubuntu:22.04": ("sh",),
    "docker.io/library/ubuntu:latest": ("sh",),
    "docker.io/nvidia/cuda:13.0.2-base-ubi8": ("sh",),
    "docker.io/nvidia/cuda:9.0-devel": ("sh",),
    "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0": ("cuda-probe",),
}
"""Images of other pods in docs/examples, and their commands. Their files are BUSYBOX_IMAGE's."""
_HAMI_IMAGE: Final = "docker.m.daocloud.io/projecthami/hami:v2.4.0"
"""A stand-in for HAMi's image, with the one file that Koordinator's document takes from it."""
PRELOAD_IMAGE: Final = "docker.io/local/own-preload:1"
"""An image with a file /etc/ld.so.preload. The next image has Nix's preload file instead."""
NIX_PRELOAD_IMAGE: Final = "docker.io/local/own-nix-preload:1"
LINKED_PRELOAD_IMAGE: Final = "docker.io/local/linked-preload:1"
"""An image whose /etc/ld.so.preload is a symbolic link."""
LINKED_VOLUME_IMAGE: Final = "docker.io/local/linked-volume:1"
"""An image whose symbolic link LINKED_VOLUME points to the grant."""
LINKED_VOLUME: Final = "/volumes/deep/grant"
ENVIRON_IMAGE: Final = "docker.io/local/environ:1"
"""An image with the environment variables of NVIDIA's CUDA images."""
TWICE_IMAGE: Final = "docker.io/local/twice:1"
"""An image that sets one of NVIDIA's variables twice."""
FILE_IN_PLACE_IMAGE: Final = "docker.io/local/file-in-place:1"
"""An image with a file at the path of gpuslice's directory. The next image has a directory at the
path of the preload file."""
DIRECTORY_IN_PLACE_IMAGE: Final = "docker.io/local/directory-in-place:1"
NO_ETC_IMAGE: Final = "docker.io/local/no-etc:1"
"""An image with a shell and tools, but no directory /etc."""

OWN_PRELOAD: Final = "/opt/test/libown.so"
"""The library that the images' own preload files name. The tests provide it."""

PYTHON_HOME: Final = "/opt/lab"
"""A Python virtual environment in the image. Its bin directory is the first on PATH."""

_TOOLS: Final = (
    *("bash", "sh", "env", "cat", "cp", "mv", "rm", "ls", "ln", "mkdir", "chmod", "chown", "id"),
    *("sleep", "echo", "true", "kill", "stat", "head", "tail", "truncate", "touch", "dd", "grep"),
    *("mount", "umount", "chroot", "setpriv", "unshare", "timeout", "readlink", "seq", "tee"),
)
_LOADED_BY_NAME: Final = ("libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1")
"""Libraries in libc's directory that programs open at run time, so ldd does not list them."""
_NOT_NEEDED: Final = re.compile(
    r"^/(test|idlelib|tkinter|turtledemo|ensurepip|lib2to3|site-packages|dist-packages|config-[^/]*)/"
    r"|/tests?/|\.opt-\d\.pyc$|\.a$|/(_test|_tkinter|xxlimited|_ctypes_test)[^/]*\.so$"
)
_PACKAGES: Final = {"cuda.bindings": "cuda/bindings", "cuda.pathfinder": "cuda/pathfinder"}
_NO_NEED_IN_PACKAGE: Final = re.compile(
    r"\.px[di]$|/_lib/|/(runtime|cufile|nvml|cudla|nvrtc|nvvm|nvfatbin|nvjitlink)\.cpython"
)
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PASSWD: Final = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
_GROUP: Final = b"root:x:0:\nnogroup:x:65534:\n"


@dataclass(frozen=True)
class Catalogue:
    """Images that are built on demand. extra: added files (path inside: file here, mode)."""

    extra: Mapping[str, tuple[Path, int]]

    def images(self) -> Sequence[Image]:
        preload = f"{OWN_PRELOAD} # of the image\n".encode()
        own, nix, linked = Layer(), Layer(), Layer()
        own.add_bytes(names.CONTAINER_PRELOAD, preload)
        nix.add_bytes(names.CONTAINER_PRELOAD_NIX, preload)
        linked.add_bytes("/etc/preload", preload)
        linked.add_link(names.CONTAINER_PRELOAD, "/etc/preload")
        volume = Layer()
        volume.add_link(LINKED_VOLUME, f"{names.CONTAINER_DIR}/{names.FILE_GRANT}")
        file, directory = Layer(), Layer()
        file.add_bytes(names.CONTAINER_DIR, b"")
        directory.add_directory(names.CONTAINER_PRELOAD, 0o755)
        tools = [self._tools, self._extra]
        plain = [self._tools, self._etc, self._extra]
        visible = f"{names.ENV_VISIBLE_DEVICES}=all"
        return (
            self._pause,
            Image(PYTHON_IMAGE, self._whole),
            Image(PRELOAD_IMAGE, [*plain, own]),
            Image(NIX_PRELOAD_IMAGE, [*plain, nix]),
            Image(LINKED_PRELOAD_IMAGE, [*plain, linked]),
            Image(FILE_IN_PLACE_IMAGE, [*plain, file]),
            Image(DIRECTORY_IN_PLACE_IMAGE, [*plain, directory]),
            Image(LINKED_VOLUME_IMAGE, [*plain, volume]),
            Image(ENVIRON_IMAGE, plain, environ=[visible, "NVIDIA_DRIVER_CAPABILITIES=all"]),
            Image(TWICE_IMAGE, plain, environ=[visible, f"{names.ENV_VISIBLE_DEVICES}=void"]),
            Image(NO_ETC_IMAGE, tools),
        )

    def of_a_cluster(self) -> Sequence[Image]:
        """Return the images that users' pods in the cluster may name."""
        hami = Layer()
        hami.add_bytes("/k8s-vgpu/lib/nvidia/libvgpu.so", b"stand-in")
        return (
            *(self.busybox(name, command) for name, command in _STAND_INS.items()),
            Image(_HAMI_IMAGE, [self._tools, hami]),
            self._pause,
            self.busybox(),
            self.busybox(DEBIAN_IMAGE),
            Image(PYTHON_IMAGE, self._whole, ["python3"], [f"PATH={PYTHON_HOME}/bin:{_PATH}"]),
        )

    def busybox(self, name: str = BUSYBOX_IMAGE, command: Sequence[str] = ("sh",)) -> Image:
        layers = [self._tools, self._etc, self._applets, self._extra]
        return Image(name, layers, command, [f"PATH={_PATH}"])

    @property
    def _whole(self) -> Sequence[Layer]:
        return [self._tools, self._etc, self._python, self._extra]

    @property
    def _pause(self) -> Image:
        layer = Layer()
        layer.add_file(_program("busybox"), "/busybox")
        for_ever = "while :; do sleep 1000000; done"
        return Image(PAUSE_IMAGE, [layer], ["/busybox", "sh", "-c", for_ever])

    @cached_property
    def _tools(self) -> Layer:
        layer = Layer()
        for name in ("bin", "sbin", "lib", "lib64"):
            if (path := Path("/", name)).is_symlink():
                layer.add_link(str(path), str(path.readlink()))
        for tool in _TOOLS:
            layer.add_file(_program(tool), f"/usr/bin/{tool}")
        layer.add_file(_program("busybox"), "/usr/bin/busybox")
        layer.add_needed()
        for name in _LOADED_BY_NAME:
            layer.add_file(_beside_libc(name))
        for name, mode in (("tmp", 0o1777), ("root", 0o700), ("proc", 0o755), ("dev", 0o755)):
            layer.add_directory(name, mode)
        return layer

    @cached_property
    def _applets(self) -> Layer:
        listed = subprocess.run([_program("busybox"), "--list"], text=True, capture_output=True)
        layer = Layer()
        for name in sorted(set(listed.stdout.split()) - {"busybox", *_TOOLS}):
            layer.add_link(f"/usr/bin/{name}", "busybox")
        return layer

    @cached_property
    def _etc(self) -> Layer:
        layer = Layer()
        layer.add_bytes("/etc/passwd", _PASSWD)
        layer.add_bytes("/etc/group", _GROUP)
        return layer

    @cached_property
    def _python(self) -> Layer:
        """Python's interpreter at its path on this machine, and a virtual environment for it."""
        layer = Layer()
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        interpreter = Path(sys.base_prefix, "bin", version)
        standard = Path(sysconfig.get_path("stdlib"))
        layer.add_file(interpreter, str(interpreter))
        layer.add_tree(standard, str(standard), _NOT_NEEDED)
        site = f"{PYTHON_HOME}/lib/{version}/site-packages"
        for module, where in _PACKAGES.items():
            layer.add_tree(_package(module), f"{site}/{where}", _NO_NEED_IN_PACKAGE)
        layer.add_file(_package("pynvml"), f"{site}/pynvml.py")
        layer.add_needed()
        home = f"home = {interpreter.parent}\ninclude-system-site-packages = false\n"
        layer.add_bytes(f"{PYTHON_HOME}/pyvenv.cfg", home.encode())
        for name in ("python3", "python"):
            layer.add_link(f"{PYTHON_HOME}/bin/{name}", str(interpreter))
        return layer

    @cached_property
    def _extra(self) -> Layer:
        layer = Layer()
        for path, (source, mode) in self.extra.items():
            layer.add_file(source, path, mode)
        layer.add_needed()
        return layer


def kube_scheduler(program: Path, version: str) -> Image:
    """Return the image of kube-scheduler under Kubernetes' own name, which the chart uses."""
    layer = Layer()
    layer.add_file(program, "/usr/local/bin/kube-scheduler", 0o755)
    return Image(f"registry.k8s.io/kube-scheduler:v{version}", [layer], environ=[f"PATH={_PATH}"])


def _program(name: str) -> Path:
    found = shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin")
    if found is None:
        raise FileNotFoundError(f"{name} is not installed; make setup installs what the lab needs")
    return Path(found)


def _beside_libc(name: str) -> Path:
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path(line.split(maxsplit=5)[-1])
        if path.name.startswith("libc.so.") or path.name.startswith("libc-2."):
            return path.parent / name
    raise FileNotFoundError("this Python is not linked with glibc, which the lab's images need")


def _package(module: str) -> Path:
    """Return the module's file, or the directory of a package."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"{module} is not in this environment; run make setup")
    origin = Path(spec.origin)
    return origin.parent if origin.name == "__init__.py" else origin
