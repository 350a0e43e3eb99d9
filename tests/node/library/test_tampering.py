"""Root in a container attacks the agent's files: attempts that fail, and known escapes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from gpuslice.contract import names
from lab.node.catalogue import NO_ETC_IMAGE, PYTHON_IMAGE
from lab.node.cri import Container, Process, Sandbox
from lab.node.lab import Lab

from ..attacks import COPY, REMOVE
from ..scene import HALF, PROBE, WHOLE, granted, one, probe

pytestmark = pytest.mark.node

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
    "mv its parent": "mv /etc /etc2",
    "link in its place": "ln -sf /tmp/nothing {} && test ! -d {}",
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_root_inside_cannot_touch(half: Container, target: str) -> None:
    """`mv /etc` fails on a plain overlay, because the lower directory would have to be copied."""
    for name, attempt in ATTEMPTS.items():
        done = half.exec(["sh", "-c", attempt.format(target, target)])
        assert done.code != 0, f"{name} {target} succeeded"
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
    """Here /etc exists only in the container's own upper layer, which allows a rename."""
    with granted(lab, Process(NO_ETC_IMAGE)) as container:
        assert probe(container).held_to(HALF)
        assert container.exec(["mv", "/etc", "/etc2"]).code == 0
        assert probe(container).escaped_to(WHOLE)


_OWN_NAMESPACE = [
    *("unshare", "--map-root-user", "--mount", "sh", "-c"),
    f"mount --bind /dev/null {names.CONTAINER_PRELOAD} && exec {PROBE}",
]


@pytest.mark.parametrize("user", [None, 1000], ids=["root", "a user without rights"])
def test_escape_that_remains_a_user_namespace(lab: Lab, user: int | None) -> None:
    """Root of a user namespace may not unmount the mounts from outside, but may mount over them."""
    with granted(lab, Process(PYTHON_IMAGE, user=user)) as container:
        assert probe(container, _OWN_NAMESPACE).escaped_to(WHOLE)
        assert probe(container).held_to(HALF)


def test_the_runtimes_seccomp_profile_closes_the_user_namespace(lab: Lab) -> None:
    with granted(lab, Process(PYTHON_IMAGE, seccomp=True)) as container:
        refused = container.exec(_OWN_NAMESPACE)
        assert refused.code != 0 and "unshare failed" in refused.err
        assert probe(container).held_to(HALF)


def test_escape_that_remains_chroot_into_a_copy(half: Container) -> None:
    """The copy in /dev has the driver and the GPU, but not our preload file."""
    assert half.exec(["sh", "-c", COPY]) == (0, "", "")
    command = ["env", "SIMGPU_DIR=/copy", "chroot", "/dev", "/bin/probe"]
    assert probe(half, command).escaped_to(WHOLE)
    assert probe(half).held_to(HALF)


@pytest.mark.parametrize("sees", ["POD", "NODE"])
def test_escape_that_remains_removing_from_another_mount_namespace(
    lab: Lab, sees: Literal["POD", "NODE"]
) -> None:
    """Linux refuses to unlink a mount point only in the mount namespace in which it is mounted. In
    another namespace the name is removed, and what is mounted on it is unmounted."""
    own = Sandbox(pid="CONTAINER" if sees == "NODE" else sees)
    confined = Process(PYTHON_IMAGE, seccomp=True)
    with lab.pod("a", one(lab), of=own) as pod, lab.pod("b", of=Sandbox(pid=sees)) as second:
        main = pod.run("main", confined)
        other = (second if sees == "NODE" else pod).run("other", confined)
        assert probe(main).held_to(HALF)
        assert other.exec(["sh", "-c", REMOVE]) == (0, "", "")
        assert probe(main).escaped_to(WHOLE)


_TAKE = f"""
import os, socket
listener = socket.socket(socket.AF_UNIX)
listener.bind("/between/new")
listener.listen()
os.rename("/between/new", "/between/socket")
peer = listener.accept()[0]
(etc,) = socket.recv_fds(peer, 1, 1)[1]
try:
    os.unlink({Path(names.CONTAINER_PRELOAD).name!r}, dir_fd=etc)
    said = "removed"
except OSError as error:
    said = error.strerror
peer.sendall(said.encode())
"""
_GIVE = f"""
import os, socket, time
while not os.path.exists("/between/socket"):
    time.sleep(0.01)
peer = socket.socket(socket.AF_UNIX)
peer.connect("/between/socket")
socket.send_fds(peer, [b"."], [os.open({str(Path(names.CONTAINER_PRELOAD).parent)!r}, os.O_PATH)])
print(peer.recv(100).decode())
"""


@pytest.mark.parametrize(
    ("read_only", "said", "held"),
    [(False, "removed", WHOLE), (True, "Read-only file system", HALF)],
    ids=["a writable root", "a read-only root"],
)
def test_escape_that_remains_a_directory_handed_to_another_pod(
    lab: Lab, tmp_path: Path, read_only: bool, said: str, held: int
) -> None:
    """A container sends its directory's descriptor over a socket in a shared volume."""
    shared = {"/between": tmp_path}
    taker = Process(PYTHON_IMAGE, ["python3", "-c", _TAKE], mounts=shared, seccomp=True)
    giver = Process(PYTHON_IMAGE, mounts=shared, read_only=read_only, seccomp=True)
    with lab.pod("b") as second, granted(lab, giver) as main:
        second.run("taker", taker)
        assert probe(main).held_to(HALF)
        assert main.exec(["python3", "-c", _GIVE]) == (0, f"{said}\n", "")
        taken = probe(main)
        assert taken.escaped_to(WHOLE) if held == WHOLE else taken.held_to(held)
