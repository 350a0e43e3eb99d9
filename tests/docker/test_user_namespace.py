"""A daemon with --userns-remap: root in a container is an ordinary user of the host."""

from __future__ import annotations

import sys

import pytest

from lab.docker.image import IMAGE
from lab.docker.machine import Machine
from lab.docker.programs import RELEASES
from tests.docker.grants import BUILD_S

pytestmark = [pytest.mark.docker, pytest.mark.timeout(BUILD_S)]
_USER = "dockremap"
_FIRST = 100000
_FILES = {
    "passwd": f"{_USER}:x:999:999::/:/bin/false",
    "group": f"{_USER}:x:999:",
    **dict.fromkeys(("subuid", "subgid"), f"{_USER}:{_FIRST}:65536"),
}


@pytest.mark.usefixtures("build_dir")
@pytest.mark.parametrize("release", RELEASES)
def test_a_container_of_another_user_namespace_has_its_limit(release: str) -> None:
    """The check before its start cannot enter the host's directory of grants."""
    RELEASES[release].ensure()
    with Machine(RELEASES[release], memory_bytes=(40 << 30,)) as machine:
        for file, line in _FILES.items():
            machine.run(["sh", "-c", f"echo {line} >> /etc/{file}"])
        machine.kill_dockerd()
        machine.start_dockerd(f"--userns-remap={_USER}")
        machine.import_image()
        limit = ("--memory", "2GiB", "--rm", "--network", "none", "--image", IMAGE)
        script = "nvidia-smi; cat /proc/self/uid_map"
        command = [sys.executable, "-m", "gpuslice", "run", *limit, "--", "sh", "-c", script]
        done = machine.run(command)
        assert done.returncode == 0, done.stderr
        assert " 2048MiB " in done.stdout and f" {_FIRST} " in done.stdout
