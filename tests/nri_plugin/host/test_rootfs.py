"""The check before a container's start, on containers that runc has really made."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuslice.contract import names
from lab.node import cgroups
from nri_plugin.host import preload_list, selinux
from nri_plugin.host.driver_root import DriverRoot
from nri_plugin.host.files import RunDirectory
from nri_plugin.host.rootfs import Examination, Inspector
from nri_plugin.host.selinux import LABEL
from nri_plugin.policy.model import Mount, Share
from nri_plugin.policy.refusals import Reason, Refused
from tests.nri_plugin.host.test_selinux import ALL, OF_TMPFS, SUBJECT, Kernel, bits
from tests.nri_plugin.host_files import put
from tests.nri_plugin.objects import clear, planned

pytestmark = pytest.mark.node

LIBCUDA = "/lib/libcuda.so.1"
SHARES = (Share("GPU-1", 0, 1 << 20, 50),)
PROTECTIVE = 5


class Bundle:
    """A container made by `runc create`, with the directories of containerd's shim."""

    def __init__(self, tmp_path: Path) -> None:
        self.id = self.cgroup = f"gpuslice-test-{os.getpid()}"
        self.state = tmp_path / "state"
        self.path = self.state / "io.containerd.runtime.v2.task/k8s.io" / self.id
        self.root = self.path / "rootfs"
        for directory in ("bin", "proc", "dev", "etc"):
            (self.root / directory).mkdir(parents=True)
        shutil.copy("/bin/busybox", self.root / "bin/busybox")
        self.files = RunDirectory(tmp_path / "run", lambda: 1)
        run, store, socket = (tmp_path / name for name in ("run", "store", "nri/nri.sock"))
        library = put(store / "libvgpu.so", "\x7fELF")
        self.plan = planned(self.id, SHARES, run=str(run), library=str(library))
        self.files.apply(self.plan)
        self.mounts = self.plan.mounts[:PROTECTIVE]
        policy = selinux.Policy(Path("/"))
        self.inspector = Inspector(
            self.state, run, store, socket, Path, policy, forwarded=False, allowed=frozenset()
        )
        self.capabilities: dict[str, list[str]] = {}
        self.host_pid = False
        self._runc = ["runc", "--root", str(tmp_path / "runc")]

    def must_see(self, path: str, source: Path) -> None:
        self.plan = replace(self.plan, files={**self.plan.files, path: str(source)})

    def create(self, *more: Mount, entry: str = "busybox") -> None:
        basic = [Mount("/proc", "proc", (), "proc"), Mount("/dev", "tmpfs", (), "tmpfs")]
        kinds = ("pid", "mount", "ipc", "uts")[1 if self.host_pid else 0 :]
        process = {"cwd": "/", "args": [entry, "sleep", "60"], "env": ["PATH=/bin"]}
        config = {
            "ociVersion": "1.0.2",
            "process": {**process, "user": {"uid": 0}, "capabilities": self.capabilities},
            "root": {"path": "rootfs"},
            "mounts": [mount._asdict() for mount in (*basic, *self.mounts, *more)],
            "linux": {
                "namespaces": [{"type": kind} for kind in kinds],
                "cgroupsPath": f"/{self.cgroup}/{self.id}",
            },
        }
        put(self.path / "config.json", json.dumps(config))
        command = [*self._runc, "create", f"--bundle={self.path}", "--no-new-keyring"]
        command += [f"--pid-file={self.path}/init.pid", self.id]
        # runc's output goes to a file, because the container's init keeps it open.
        with (self.path / "log").open("w") as log:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        assert done.returncode == 0, (self.path / "log").read_text()

    def configure(self, **sections: dict[str, Any]) -> None:
        """Change the container's OCI configuration, as another program might after the creation."""
        config = json.loads((self.path / "config.json").read_text())
        for name, changes in sections.items():
            config[name] |= changes
        (self.path / "config.json").write_text(json.dumps(config))

    def examine(self, forwarded: bool = False, allowed: Set[str] = frozenset()) -> Examination:
        inspector = replace(self.inspector, forwarded=forwarded, allowed=allowed)
        return inspector.examine(self.id, self.plan)

    def start(self) -> None:
        subprocess.run([*self._runc, "start", self.id], check=True)

    def end(self) -> None:
        """Kill and reap the container; its bundle stays."""
        subprocess.run([*self._runc, "delete", "--force", self.id], check=True)

    def remove(self) -> None:
        subprocess.run([*self._runc, "delete", "--force", self.id], capture_output=True)
        clear(self.files)
        cgroups.remove(self.cgroup)


@pytest.fixture
def bundle(tmp_path: Path) -> Iterator[Bundle]:
    """Yield a bundle. Nothing of it may be left after the test."""
    made = Bundle(tmp_path)
    try:
        yield made
    finally:
        made.remove()
    left = subprocess.run(["find", cgroups.ROOT, "-name", made.cgroup], capture_output=True)
    assert left.stdout == b""


def expect_refusal(bundle: Bundle, reason: Reason, *texts: str, forwarded: bool = False) -> None:
    with pytest.raises(Refused) as refused:
        bundle.examine(forwarded)
    assert refused.value.refusal.reason is reason
    assert all(text in str(refused.value) for text in texts), refused.value


def volume(place: str, source: Path, *options: str) -> Mount:
    return Mount(place, str(source), ("bind", *(options or ("ro",))))


def test_what_the_images_own_preload_names_is_found(bundle: Bundle) -> None:
    bundle.create()
    assert bundle.examine().preloads == {}
    for place in names.CONTAINER_PRELOADS:
        file = bundle.root / place[1:]
        assert file.exists(), "the runtime makes the mount points that the image lacks"
        text = "/lib/jemalloc.so # fast\n/lib/other.so\n"
        file.write_text(text.ljust(preload_list.MAX_BYTES))
        assert bundle.examine().preloads == {place: (b"/lib/jemalloc.so", b"/lib/other.so")}
        file.write_text("")


def test_the_entry_point_is_what_the_runtime_will_start(bundle: Bundle, tmp_path: Path) -> None:
    """A volume hides the image's dynamic program by a static program of the same name."""
    for directory in (tmp_path / "volume", bundle.root / "volume"):
        directory.mkdir()
    shutil.copy("/bin/busybox", tmp_path / "volume/busybox")
    bundle.create(volume("/volume", tmp_path / "volume"), entry="/volume/busybox")
    assert "'/volume/busybox' is statically linked" in bundle.examine().out_of_reach


def test_a_bundle_that_cannot_be_read_is_refused(bundle: Bundle) -> None:
    bundle.create()
    whole = (file := bundle.path / "config.json").read_text()
    for config in ("{", "[]", '{"process": {"env": [1]}}'):
        file.write_text(config)
        expect_refusal(bundle, Reason.ROOTFS_UNKNOWN)
    file.write_text(whole.ljust(16 << 20))
    bundle.examine()
    for size in ((16 << 20) + 1, 1 << 40):
        os.truncate(file, size)
        expect_refusal(bundle, Reason.ROOTFS_UNKNOWN, "config.json has more than 16777216 bytes")


def test_a_runtime_that_runs_containers_in_a_sandbox(bundle: Bundle) -> None:
    """Kata is the default runtime: the pod has no RuntimeClass, the bundle no process ID."""
    bundle.create()
    (bundle.path / "init.pid").unlink()
    expect_refusal(bundle, Reason.RUNTIME_SANDBOXED, "must be runc or crun", "RuntimeClass of runc")


def test_a_capability_of_any_set_that_loosens_the_limit(bundle: Bundle) -> None:
    """A setuid program in the image gets a capability that is only in the bounding set."""
    bundle.create()
    for of in ("bounding", "effective", "permitted", "inheritable", "ambient"):
        bundle.configure(process={"capabilities": {of: ["CAP_CHOWN", "CAP_DAC_READ_SEARCH"]}})
        expect_refusal(bundle, Reason.CAPABILITY, "value DAC_READ_SEARCH: ", " the container open")
        bundle.examine(allowed={"DAC_READ_SEARCH"})
    bundle.configure(process={"capabilities": {"bounding": ["CAP_SYS_PTRACE"]}})
    bundle.examine()


def test_to_trace_beside_the_hosts_processes(bundle: Bundle) -> None:
    bundle.capabilities, bundle.host_pid = {"bounding": ["CAP_SYS_PTRACE"]}, True
    bundle.create()
    expect_refusal(bundle, Reason.CAPABILITY, "value SYS_PTRACE: ", " the container access")


def test_an_image_in_the_way_is_refused(bundle: Bundle) -> None:
    bundle.create()
    places = (*names.CONTAINER_PRELOADS, names.CONTAINER_DIR)
    preload, nix, ours = (bundle.root / place[1:] for place in places)
    os.truncate(preload, 1 << 40)
    expect_refusal(bundle, Reason.IMAGE_PRELOAD, "(1099511627776 bytes)")
    preload.unlink()
    nix.unlink()
    os.mkfifo(nix)
    special = "ld-nix.so.preload: invalid value (a special file)"
    expect_refusal(bundle, Reason.IMAGE_PRELOAD, special)
    nix.unlink()
    ours.rename(bundle.root / "elsewhere")
    ours.symlink_to("elsewhere")
    linked = "image path {}: invalid value (a symbolic link)"
    expect_refusal(bundle, Reason.IMAGE_PATH, linked.format("/.gpuslice"))
    (bundle.root / "etc").rename(bundle.root / "config")
    (bundle.root / "etc").symlink_to("config")
    expect_refusal(bundle, Reason.IMAGE_PATH, linked.format("/etc"))


def test_a_volume_that_a_link_of_the_image_leads_over_ours(bundle: Bundle, tmp_path: Path) -> None:
    """The volume's mount point is a link in the image to /etc. The volume is mounted after our
    /etc/ld.so.preload, because its path is deeper, and hides the preload file."""
    (bundle.root / "a/b/c").mkdir(parents=True)
    (bundle.root / "a/b/c/d").symlink_to("/etc")
    (tmp_path / "volume").mkdir()
    bundle.create(volume("/a/b/c/d", tmp_path / "volume", "rw"))
    problem = ("/etc/ld.so.preload is not the file", "it does not exist")
    expect_refusal(bundle, Reason.VIEW_DIFFERS, *problem)


@pytest.fixture
def forwarder(bundle: Bundle, tmp_path: Path) -> Path:
    """Let the plan have a forwarder at the driver's path, and return the forwarder."""
    bundle.must_see(LIBCUDA, tmp_path / "store/libcuda.so.1")
    return put(tmp_path / "store/libcuda.so.1")


def test_a_forwarder_is_where_a_program_would_find_it(bundle: Bundle, forwarder: Path) -> None:
    """The image has a link at the driver's path. runc mounts the forwarder on the link's target, so
    that the link leads to the forwarder."""
    (bundle.root / "usr/lib").mkdir(parents=True)
    (bundle.root / "lib").symlink_to("usr/lib")
    (bundle.root / "usr/lib/libcuda.so.1").symlink_to("/lib/libcuda.so.580")
    bundle.create(volume(LIBCUDA, forwarder))
    bundle.examine(forwarded=True)


@pytest.mark.usefixtures("forwarder")
def test_a_forwarder_that_is_not_in_its_place(bundle: Bundle) -> None:
    bundle.create()
    expect_refusal(bundle, Reason.VIEW_DIFFERS, "it does not exist", forwarded=True)
    put(bundle.root / LIBCUDA[1:], "own")
    expect_refusal(bundle, Reason.VIEW_DIFFERS, "a regular file of 3 bytes", forwarded=True)


def test_a_driver_that_a_pod_has_elsewhere_than_the_host(bundle: Bundle, tmp_path: Path) -> None:
    """The plan names the driver's file by its path on the host. The agent's pod sees that file
    elsewhere, below its mount of the driver root."""
    library = put(tmp_path / "driver-root/lib/libcuda.so.1", "driver")
    root = DriverRoot(Path("/no/such/root"), tmp_path / "driver-root")
    bundle.inspector = replace(bundle.inspector, driver_seen=root.seen)
    inside = f"{names.CONTAINER_DRIVER_DIR}/libcuda.so.1"
    bundle.must_see(inside, Path("/no/such/root/lib/libcuda.so.1"))
    bundle.create(volume(inside, library))
    bundle.examine(forwarded=True)
    library.unlink()
    put(library, "another")
    expect_refusal(bundle, Reason.VIEW_DIFFERS, "a regular file of 6 bytes", forwarded=True)


@pytest.mark.parametrize("place", ["run", "store", "run/other"])
def test_a_volume_that_shows_others_limits(bundle: Bundle, tmp_path: Path, place: str) -> None:
    """A link in the volume's host path, which only the kernel follows, leads to the run directory,
    the store or another container's files."""
    bundle.files.apply(planned("other", SHARES))
    (tmp_path / "link").symlink_to(tmp_path)
    bundle.create(volume("/volume", tmp_path / "link" / place, "rw"))
    exposed = f"must not expose {tmp_path}/run, which limits"
    expect_refusal(bundle, Reason.HOST_VOLUME, "mount /volume: invalid value ", exposed)


_OWN = {"type": "pid"}
_JOINED = {"type": "pid", "path": "/proc/1/ns/pid"}


def test_a_strong_container_without_a_share_beside_one(bundle: Bundle) -> None:
    bundle.mounts = ()
    bundle.capabilities = {"bounding": ["CAP_CHOWN", "CAP_SYS_ADMIN"]}
    bundle.create()
    allowing = replace(bundle.inspector, allowed={"SYS_ADMIN"})
    for namespaces in ([_OWN], [_JOINED], [], None, [{"type": "ipc"}]):
        bundle.configure(linux={"namespaces": namespaces})
        strong = "" if namespaces == [_OWN] else "SYS_ADMIN"
        assert bundle.inspector.strong_beside(bundle.id) == strong
        assert allowing.strong_beside(bundle.id) == ""


def test_a_label_that_may_not_use_our_files(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SELinux's policy must let the container's label use each file of the limit as needed."""
    bundle.create()
    bundle.configure(process={"selinuxLabel": SUBJECT})
    kernel = Kernel(tmp_path / "host", {LABEL: ALL, OF_TMPFS: bits("open", "read", "getattr")})
    bundle.inspector = replace(bundle.inspector, policy=kernel.policy)
    unlabelled: set[str] = set()
    monkeypatch.setattr(
        selinux, "label_of", lambda path: OF_TMPFS if str(path) in unlabelled else LABEL
    )
    bundle.examine()
    own = f"{bundle.files.root}/{bundle.id}"
    unlabelled = {f"{own}/grant", f"{own}/preload"}
    bundle.examine()
    unlabelled = {bundle.plan.files[names.CONTAINER_LIBRARY]}
    expect_refusal(bundle, Reason.SELINUX, f"does not let {SUBJECT} execute, map a file")
    unlabelled = {f"{own}/region"}
    expect_refusal(bundle, Reason.SELINUX, f"does not let {SUBJECT} map, write a file")


def test_a_file_of_the_same_number_on_another_file_system(bundle: Bundle, tmp_path: Path) -> None:
    """File systems in memory all number their files from the start."""
    ours = (tmp_path / "run" / bundle.id / "grant").stat().st_ino
    (tmp_path / "own").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tmp_path / "own"], check=True)
    try:
        files = [put(tmp_path / "own" / str(number)) for number in range(ours + 1)]
        own = next((each for each in files if each.stat().st_ino == ours), None)
        if own is None:
            pytest.skip(f"this kernel numbers files otherwise: none of these is {ours}")
        (bundle.root / "a/b").mkdir(parents=True)
        (bundle.root / "a/b/grant").symlink_to("/.gpuslice/grant")
        bundle.create(volume("/a/b/grant", own))
        expect_refusal(bundle, Reason.VIEW_DIFFERS, "/.gpuslice/grant is not the file")
    finally:
        subprocess.run(["umount", tmp_path / "own"], check=True)
