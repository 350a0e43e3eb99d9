"""The search for the driver root and the driver's libraries, on the host and below a mount."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice.gpu import driver_root, library_cache
from nri_plugin.command_line import from_arguments
from nri_plugin.gpu.contexts import Contexts
from nri_plugin.gpu.inventory import Inventory
from tests.simgpu.host import GIB, Host

GPU = '[[gpu]]\nuuid = "GPU-00000000-0000-0000-0000-000000000001"\nminor = 0\nmemory = "2Gi"\n'
CONTEXT_BYTES = 300 << 20
LIBRARIES = "usr/lib/x86_64-linux-gnu"


@pytest.fixture
def sim(build_dir: Path, tmp_path: Path) -> Iterator[Host]:
    config = tmp_path / "host.toml"
    config.write_text(f'context_overhead = "{CONTEXT_BYTES}"\n{GPU}')
    host = Host(tmp_path / "sim", ("--config", config), build_dir)
    host.up()
    yield host
    host.down()


def install(build_dir: Path, root: Path) -> None:
    """Install the driver as Debian does, with absolute links within that root."""
    for name in (driver_root.NVML, driver_root.CUDA):
        real = place(root, f"{LIBRARIES}/nvidia/current", f"{name}.580")
        shutil.copyfile(build_dir / "lib/simgpu" / name, real)
        alternative = root / "etc/alternatives" / name
        alternative.parent.mkdir(parents=True, exist_ok=True)
        alternative.symlink_to(f"/{real.relative_to(root)}")
        (root / LIBRARIES / name).symlink_to(f"/etc/alternatives/{name}")


def place(root: Path, below: str, name: str = driver_root.NVML) -> Path:
    library = root / below / name
    library.parent.mkdir(parents=True, exist_ok=True)
    library.touch()
    return library


@pytest.mark.sim
@pytest.mark.parametrize("chosen", [[], ["--driver-root=/run/nvidia/driver"]], ids=str)
async def test_a_driver_installed_later_is_found(
    sim: Host, build_dir: Path, tmp_path: Path, chosen: list[str]
) -> None:
    """The driver appears late, below the root that the operator chose or one that is searched."""
    host = tmp_path / "host"
    mount = host / "run/nvidia/driver"
    mount.mkdir(parents=True)
    here = {key: value for key, value in sim.env().items() if key != "LD_LIBRARY_PATH"}
    arguments = ["--library", "/l", f"--host-root={host}", *chosen]
    environment = from_arguments(arguments, here).environment
    gpus = Inventory(environment, deadline_s=60, min_interval_s=0)
    await gpus.refresh()
    problem = str(gpus.problem)
    assert problem.startswith("NVML: driver root: ")
    assert "must contain libnvidia-ml.so.1" in problem
    assert str(mount if chosen else "/run/nvidia/driver") in problem
    assert LIBRARIES in problem and "--driver-root" in problem

    install(build_dir, mount)
    await gpus.refresh()
    assert [gpu.memory_bytes for gpu in gpus.gpus] == [2 * GIB]
    contexts = Contexts(environment, gpus, deadline_s=60)
    await contexts.measure(gpus.gpus)
    assert contexts.sizes == {gpus.gpus[0].uuid: CONTEXT_BYTES}
    await gpus.close()


def test_links_stay_below_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "a/up").symlink_to("../../../b")
    (root / "a/loop").symlink_to("loop")
    assert driver_root.resolve(root, "/a/up/c") == root / "b/c"
    with pytest.raises(OSError, match="symbolic links"):
        driver_root.resolve(root, "/a/loop")


def test_on_the_host_the_loader_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader finds the driver if the agent's variables are not set, or the driver root is /."""
    assert driver_root.seen_root() is None
    monkeypatch.setenv(driver_root.VARIABLE, "/")
    assert driver_root.seen_root() is None
    monkeypatch.setenv(driver_root.VARIABLE, str(tmp_path))
    assert driver_root.seen_root() == tmp_path
    environment = from_arguments(["--library", "/l", f"--driver-root={tmp_path}"], {}).environment
    assert environment == {driver_root.VARIABLE: str(tmp_path), driver_root.HOST_VARIABLE: "/"}


@pytest.mark.parametrize(
    ("below", "root"),
    [
        *((below, "/") for below in ("usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/local/lib")),
        *((below, "/") for below in ("usr/lib/nvidia/tesla", "usr/local/nvidia/lib64")),
        ("run/opengl-driver/lib", "/"),
        ("home/kubernetes/bin/nvidia/lib64", "/home/kubernetes/bin/nvidia"),
        ("run/nvidia/driver/usr/lib/x86_64-linux-gnu", "/run/nvidia/driver"),
        ("var/lib/nvidia/lib64", "/var/lib/nvidia"),
        ("usr/local/lib64", "/usr/local"),
    ],
)
def test_the_driver_root_is_where_nvml_lies(tmp_path: Path, below: str, root: str) -> None:
    assert driver_root.locate(tmp_path) is None
    library = place(tmp_path, below)
    assert driver_root.locate(tmp_path) == Path(root)
    assert driver_root.find(tmp_path / root[1:], driver_root.NVML) == library


def test_gpu_operators_file_comes_first_while_it_is_right(tmp_path: Path) -> None:
    place(tmp_path, "usr/lib64")
    other = place(tmp_path, "data/driver/usr/lib64")
    file = tmp_path / driver_root.READY.lstrip("/")
    file.parent.mkdir(parents=True)
    file.write_text("IS_HOST_DRIVER=false\nNVIDIA_DRIVER_ROOT=/data/driver\nNVIDIA_DEV_ROOT=/\n")
    assert driver_root.locate(tmp_path) == Path("/data/driver")
    other.unlink()
    assert driver_root.locate(tmp_path) == Path("/"), "the driver container has gone"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("NVIDIA_DRIVER_ROOT=/run/nvidia/driver", "/run/nvidia/driver"),
        (' NVIDIA_DRIVER_ROOT="/"\r\n', "/"),
        ("DRIVER_ROOT_CTR_PATH=/host\n", ""),
        ("NVIDIA_DRIVER_ROOT=relative\n", ""),
        ("NVIDIA_DRIVER_ROOT=/../etc\n", ""),
        ("\0\n=\nNVIDIA_DRIVER_ROOT", ""),
    ],
)
def test_what_gpu_operators_file_may_hold(text: str, found: str) -> None:
    assert driver_root.ready(text) == found


@pytest.mark.parametrize("options", [(), ("-c", "compat"), ("-c", "new")])
def test_a_directory_that_only_the_roots_cache_names(
    build_dir: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """ldconfig writes the cache. compat: the cache begins with the format from before glibc 2.2."""
    driver, root, conf = tmp_path / "driver", tmp_path / "root", tmp_path / "ld.so.conf"
    file = place(root, "etc", "ld.so.cache")
    driver.mkdir()
    conf.write_text(f"{driver}\n")
    # ldconfig reads the host's directory. The agent looks for the same path below the root.
    libraries = [
        place(root, str(driver)[1:], name) for name in (driver_root.CUDA, driver_root.NVML)
    ]
    for library in libraries:
        shutil.copy(build_dir / "lib/simgpu" / library.name, driver)
        with pytest.raises(driver_root.NotFoundError, match=r"in its etc/ld\.so\.cache"):
            driver_root.find(root, library.name)
    path = os.pathsep.join((os.environ["PATH"], "/usr/sbin", "/sbin"))
    command = ["ldconfig", "-X", "-f", str(conf), "-C", str(file), *options]
    subprocess.run(command, check=True, capture_output=True, env={"PATH": path})
    cache = file.read_bytes()
    assert cache.startswith(b"ld.so-1.7.0\0") is (options == ("-c", "compat"))
    assert [driver_root.find(root, library.name) for library in libraries] == libraries
    assert list(library_cache.find(cache, "libcuda.so")) == []
    for length in range(0, len(cache), 7):
        list(library_cache.find(cache[:length], driver_root.CUDA))
    file.write_bytes(b"\xff" * 99)
    with pytest.raises(driver_root.NotFoundError):
        driver_root.find(root, driver_root.CUDA)
