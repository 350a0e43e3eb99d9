"""The driver's libraries below a mount: the agent's children list and measure GPUs with them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice.gpu import driver_root
from nri_plugin.command_line import from_arguments
from nri_plugin.gpu.contexts import Contexts
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.settings import Settings
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
    """Install the library as Debian does: the soname leads through absolute links, which hold below
    that root alone."""
    for name in (driver_root.NVML, driver_root.CUDA):
        real = root / LIBRARIES / "nvidia/current" / f"{name}.580"
        real.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(build_dir / "lib/simgpu" / name, real)
        alternative = root / "etc/alternatives" / name
        alternative.parent.mkdir(parents=True, exist_ok=True)
        alternative.symlink_to(f"/{real.relative_to(root)}")
        (root / LIBRARIES / name).symlink_to(f"/etc/alternatives/{name}")


def settings(sim: Host, root: Path, *options: str) -> Settings:
    environment = {k: v for k, v in sim.env().items() if k != "LD_LIBRARY_PATH"}
    return from_arguments(["--library", "/l", f"--host-root={root}", *options], environment)


@pytest.mark.sim
@pytest.mark.parametrize("chosen", [[], ["--driver-root=/run/nvidia/driver"]], ids=str)
async def test_a_driver_installed_later_is_found(
    sim: Host, build_dir: Path, tmp_path: Path, chosen: list[str]
) -> None:
    """Below the root that the operator chose, or that is found; and after it moved."""
    host = tmp_path / "host"
    mount = host / "run/nvidia/driver"
    mount.mkdir(parents=True)
    environment = settings(sim, host, *chosen).environment
    gpus = Inventory(environment, deadline_s=60, min_interval_s=0)
    await gpus.refresh()
    assert gpus.problem is not None
    assert "must contain libnvidia-ml.so.1" in gpus.problem
    assert str(mount if chosen else "/run/nvidia/driver") in gpus.problem
    assert LIBRARIES in gpus.problem and "--driver-root" in gpus.problem

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
    """Also programs other than the agent and its children, which set neither variable."""
    assert driver_root.seen_root() is None
    monkeypatch.setenv(driver_root.VARIABLE, "/")
    assert driver_root.seen_root() is None
    monkeypatch.setenv(driver_root.VARIABLE, str(tmp_path))
    assert driver_root.seen_root() == tmp_path
    environment = from_arguments(["--library", "/l", f"--driver-root={tmp_path}"], {}).environment
    assert environment == {driver_root.VARIABLE: str(tmp_path), driver_root.HOST_VARIABLE: "/"}
