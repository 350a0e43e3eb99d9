"""Root inside a container, against what the agent put there: and the two ways out that remain."""

from __future__ import annotations

import pytest

from contract import names
from simgpu.lab.catalogue import NO_ETC_IMAGE
from simgpu.lab.cri import Container, Process
from simgpu.lab.lab import Lab

from .conftest import GIB, PROBE, probe

pytestmark = pytest.mark.node

HALF = 20 * GIB
WHOLE = 40 * GIB

TARGETS = {
    "library": names.CONTAINER_LIBRARY,
    "preload": names.CONTAINER_PRELOAD,
    "preload's source": f"{names.CONTAINER_DIR}/{names.FILE_PRELOAD}",
    "grant": f"{names.CONTAINER_DIR}/{names.FILE_GRANT}",
    "directory": names.CONTAINER_DIR,
    "visible library": names.CONTAINER_LIBRARY_VISIBLE,
}
ATTEMPTS = {
    "mv": "mv {} /tmp/elsewhere",
    "rm": "rm -rf {}",
    "umount": "umount {}",
    "umount lazily": "umount -l {}",
    "write": "if test -d {0}; then touch {0}/new; else echo >{0}; fi",
    "truncate": "if test -d {0}; then mkdir {0}/new; else truncate -s 0 {0}; fi",
    "remount writable": "mount -o remount,rw,bind {}",
    "mount over": "mount --bind /tmp {}",
    "chmod": "chmod 777 {}",
    "link in its place": "ln -sf /tmp/nothing {} && test ! -d {}",
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_root_inside_cannot_touch(half: Container, target: str) -> None:
    for name, attempt in ATTEMPTS.items():
        done = half.exec(["sh", "-c", attempt.format(target, target)])
        assert done.code != 0, f"{name} {target} succeeded"
    assert probe(half).held_to(HALF)


def test_the_directorys_parents_cannot_be_moved_away(half: Container) -> None:
    """`mv /etc` fails on a plain overlay: the lower directory would have to be copied."""
    assert half.exec(["mv", "/etc", "/etc2"]).code != 0
    assert probe(half).held_to(HALF)


def test_programs_cannot_be_run_from_the_region(half: Container) -> None:
    region = f"{names.CONTAINER_DIR}/{names.FILE_REGION}"
    mounts = half.exec(["cat", "/proc/self/mounts"]).out
    options = {line.split()[1]: set(line.split()[3].split(",")) for line in mounts.splitlines()}
    assert {"rw", "nosuid", "nodev", "noexec"} <= options[region]
    assert {"ro", "nosuid", "nodev"} <= options[names.CONTAINER_DIR]
    assert {"ro", "nosuid", "nodev"} <= options[names.CONTAINER_LIBRARY]
    assert "ro" in options[names.CONTAINER_PRELOAD]


def test_escape_that_remains_moving_etc_where_the_image_has_none(lab: Lab) -> None:
    """Then /etc lies in the container's own upper layer, where a rename is allowed."""
    with lab.pod("no-etc", lab.share({"main": [(0, HALF, 50)]})) as pod:
        container = pod.run("main", Process(NO_ETC_IMAGE))
        assert probe(container).held_to(HALF)
        assert container.exec(["mv", "/etc", "/etc2"]).code == 0
        assert probe(container).held_to(WHOLE)


_COPY = f"""
set -e
mkdir -p /dev/copy /dev/bin
cp {PROBE} /dev/bin/probe
for name in libc.so.6 libdl.so.2 libpthread.so.0 libcuda.so.1; do
    cp -L --parents /usr/lib/*/$name /dev
done
cp -L --parents /lib64/ld-linux*.so.* /dev
ln -s /simgpu /dev/copy/cards
"""


def test_escape_that_remains_chroot_into_a_copy(half: Container) -> None:
    """A root with the driver and the card, but without our preload line: /dev holds the card."""
    assert half.exec(["sh", "-c", _COPY]) == (0, "", "")
    command = ["env", "SIMGPU_DIR=/copy", "chroot", "/dev", "/bin/probe"]
    assert probe(half, command).held_to(WHOLE)
    assert probe(half).held_to(HALF)
