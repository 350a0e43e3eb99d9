"""ld.so.cache of the driver root: ldconfig's own, and damaged ones."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from gpuslice.gpu import driver_root, library_cache

_PLACES = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/nvidia/tesla",
    "usr/local/nvidia/lib64",
    "run/opengl-driver/lib",
    "usr/local/lib",
)
_PATH = os.pathsep.join((os.environ["PATH"], "/usr/sbin", "/sbin"))


def ldconfig(directory: Path, cache: Path, *options: str) -> bytes:
    """The cache of that directory alone, with the paths of this machine."""
    conf = cache.with_name("ld.so.conf")
    conf.parent.mkdir(parents=True, exist_ok=True)
    conf.write_text(f"{directory}\n")
    program = shutil.which("ldconfig", path=_PATH)
    assert program is not None
    command = [program, "-X", "-f", str(conf), "-C", str(cache), *options]
    subprocess.run(command, check=True, capture_output=True)
    return cache.read_bytes()


@pytest.fixture
def driver(build_dir: Path, tmp_path: Path) -> Path:
    """A directory that no table lists, as that of a run-file or of Flatcar."""
    directory = tmp_path / "opt/nvidia/current/lib64"
    directory.mkdir(parents=True)
    for name in (driver_root.CUDA, driver_root.NVML):
        shutil.copy(build_dir / "lib/simgpu" / name, directory / name)
    return directory


@pytest.mark.parametrize("options", [(), ("-c", "compat"), ("-c", "new")])
def test_what_ldconfig_wrote(driver: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    """compat: behind the format of before glibc 2.2."""
    cache = ldconfig(driver, tmp_path / "etc/cache", *options)
    assert cache.startswith(b"ld.so-1.7.0\0") is (options == ("-c", "compat"))
    for soname in (driver_root.CUDA, driver_root.NVML):
        assert str(driver / soname) in library_cache.find(cache, soname)
    assert list(library_cache.find(cache, "libcuda.so")) == []
    for length in range(0, len(cache), 7):
        list(library_cache.find(cache[:length], driver_root.CUDA))


def _cache(flags: int, soname: str, path: str) -> bytes:
    strings = f"{soname}\0{path}\0".encode()
    start = 48 + 24
    header = b"glibc-ld.so.cache1.1" + struct.pack("<II5I", 1, len(strings), 0, 0, 0, 0, 0)
    return header + struct.pack("<iIIIQ", flags, start, start + len(soname) + 1, 0, 0) + strings


def test_a_directory_that_only_the_roots_cache_names(tmp_path: Path) -> None:
    root, library = tmp_path / "root", "opt/nvidia/current/lib64/libcuda.so.580"
    (root / library).parent.mkdir(parents=True)
    with pytest.raises(driver_root.NotFoundError, match=r"libcuda\.so\.1 in its etc/ld\.so\.cache"):
        driver_root.find(root, driver_root.CUDA)
    (root / library).touch()
    (root / library).with_name("libcuda.so.1").symlink_to("libcuda.so.580")
    (root / "etc").mkdir()
    cache = root / library_cache.PLACE
    cache.write_bytes(_cache(0x0303, "libcuda.so.1", "/opt/nvidia/current/lib64/libcuda.so.1"))
    assert driver_root.find(root, driver_root.CUDA) == root / library
    cache.write_bytes(b"\xff" * 99)
    with pytest.raises(driver_root.NotFoundError):
        driver_root.find(root, driver_root.CUDA)


@pytest.mark.parametrize("place", _PLACES)
def test_a_directory_of_a_distribution(place: str, tmp_path: Path) -> None:
    library = tmp_path / place / driver_root.CUDA
    library.parent.mkdir(parents=True)
    library.touch()
    assert driver_root.find(tmp_path, driver_root.CUDA) == library
