"""The region of processes that have no grant, but a limit from environment variables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuslice.contract import names, region_file
from tests.shim.clients import CUDA, SERVE_COMMANDS
from tests.shim.conftest import GIB, MIB, Host
from tests.shim.drivers import build
from tests.shim.region.conftest import CACHE, DRIVER, INIT, MEMORY, Container
from tests.talking import talking

pytestmark = pytest.mark.sim


def test_the_first_process_sets_the_limit_until_the_last_exits(container: Container) -> None:
    assert container.totals({MEMORY: "1g"}) == [GIB, GIB]
    assert container.totals({MEMORY: "2g"}) == [2 * GIB, 2 * GIB], "no process was left"
    program = f"{DRIVER}assert driver.cuInit(0) == 0\n{SERVE_COMMANDS}"
    with talking([sys.executable, "-c", program], container.environment({MEMORY: "1g"})):
        assert container.totals({MEMORY: "2g"})[0] == GIB, "initialised, and asked for nothing yet"
        assert container.totals({MEMORY: "512m"})[0] == GIB
    assert container.totals({MEMORY: "512m"})[0] == 512 * MIB


def test_the_file_is_created_complete_once_and_for_all_users(container: Container) -> None:
    environment = container.environment({MEMORY: "1g"})
    program = "import os; os.umask(0o77)\n" + CUDA + "assert os.umask(0o77) == 0o77\n"
    running = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(8)]
    assert [process.wait() for process in running] == [0] * 8
    assert os.listdir(container.cache.parent) == ["cache"], "no draft is left"
    assert container.cache.stat().st_mode & 0o777 == 0o666
    geometry = region_file.Geometry(names.ENVIRONMENT_MAX_GPUS)
    assert container.cache.stat().st_size == geometry.file_bytes
    assert container.cache.stat().st_blocks * 512 >= geometry.file_bytes, "backed by the disk"


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\x0e\xfa\x2f\x01".ljust(2_008_953, b"\0")])
def test_another_programs_file_is_refused_and_left_alone(
    container: Container, content: bytes
) -> None:
    """The file may be, for example, HAMi-core's own region of 2,008,953 bytes."""
    container.cache.write_bytes(content)
    said = container.refusal({MEMORY: "1g"})
    why = "damaged, another program's, or of another version of this library"
    assert f"{why}: {container.cache}; remove it, or name another" in said
    assert container.cache.read_bytes() == content


def test_a_place_where_no_file_can_be_made_is_refused(container: Container) -> None:
    for path, why in (("/nonexistent/cache", ": No such file"), ("", CACHE), ("x" * 250, CACHE)):
        said = container.refusal({MEMORY: "1g", CACHE: path})
        assert "cannot be made or opened: " in said and why in said


def test_a_full_disk_refuses_at_the_start_and_keeps_no_half_of_a_file(
    container: Container, tmp_path: Path
) -> None:
    program = INIT + f"import os; print(os.listdir({str(tmp_path)!r}))"
    small = 'mount -t tmpfs -o size=512k none "$0"; exec "$@"'
    unshare = ["unshare", "--mount", "--user", "--map-root-user", "sh", "-c", small]
    done = subprocess.run(
        [*unshare, tmp_path, sys.executable, "-c", program],
        env=container.environment({MEMORY: "1g"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "800\n[]\n", done
    assert f"cannot be made or opened: {container.cache}: No space left on device; " in done.stderr


def test_a_setuid_program_creates_no_file_at_its_users_path(
    null_host: Host, tmp_path: Path
) -> None:
    """Otherwise a user could make root create a file, writable by all, at any path. The program
    shares a file of the container that exists already."""
    cache = tmp_path / "cache"
    source = """
#include <dlfcn.h>
#include <stdio.h>
#include <sys/auxv.h>
int cuInit(unsigned);
int main(int argc, char **argv) {
    if (!dlopen(argv[argc - 1], RTLD_NOW)) return 1;
    printf("%lu %d", getauxval(AT_SECURE), cuInit(0));
    return 0;
}
"""
    found = f"-Wl,-rpath,{null_host.library.parent}"
    program = build(tmp_path / "program", source, null_host.library, found)
    try:
        os.chown(program, -1, os.getegid() + 1)
    except PermissionError:
        pytest.skip("only root can give a program another group")
    command = [program, null_host.driver_dir / "libcuda.so.1"]
    environment = {MEMORY: "1g", CACHE: str(cache)}
    for mode, said in ((0o2755, "1 800"), (0o755, "0 0"), (0o2755, "1 0")):
        program.chmod(mode)
        assert subprocess.check_output(command, env=environment, text=True) == said
        assert cache.exists() is (said != "1 800")
