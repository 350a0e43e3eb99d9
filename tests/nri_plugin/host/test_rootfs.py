"""The check of a container before its start, on containers that runc has really made."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gpuslice.contract import names
from nri_plugin.host import selinux
from nri_plugin.host.driver_root import DriverRoot
from nri_plugin.host.selinux import LABEL
from nri_plugin.policy.model import Mount
from nri_plugin.policy.refusals import Reason, Refused
from tests.nri_plugin.bundle import SHARES, Bundle, bundle
from tests.nri_plugin.host.test_selinux import ALL, OF_TMPFS, SUBJECT, Kernel, bits
from tests.nri_plugin.objects import planned

__all__ = ["bundle"]

pytestmark = pytest.mark.node


def expect_refusal(bundle: Bundle, reason: Reason, *texts: str, forwarded: bool = False) -> None:
    with pytest.raises(Refused) as refused:
        bundle.examine(forwarded)
    assert refused.value.refusal.reason is reason
    assert all(text in str(refused.value) for text in texts), refused.value


def test_an_image_without_anything_of_ours_passes(bundle: Bundle) -> None:
    bundle.create()
    # Mount points that the runtime made are allowed.
    assert (bundle.root / "etc/ld.so.preload").read_bytes() == b""
    assert bundle.examine().preloads == {}


@pytest.mark.parametrize("place", names.CONTAINER_PRELOADS)
def test_what_the_images_own_preload_names_is_found(bundle: Bundle, place: str) -> None:
    (bundle.root / place[1:]).write_text("/lib/jemalloc.so # fast\n/lib/other.so")
    bundle.create()
    assert bundle.examine().preloads == {place: (b"/lib/jemalloc.so", b"/lib/other.so")}


def test_the_entry_point_is_judged_by_what_the_runtime_will_start(
    bundle: Bundle, tmp_path: Path
) -> None:
    """Volumes included: here one puts a static program under the name of a dynamic one."""
    (tmp_path / "volume").mkdir()
    shutil.copy("/bin/busybox", tmp_path / "volume/busybox")
    (bundle.root / "volume").mkdir()
    bundle.create(
        Mount("/volume", str(tmp_path / "volume"), ("bind", "ro")), entry="/volume/busybox"
    )
    assert "'/volume/busybox' is statically linked" in bundle.examine().out_of_reach


@pytest.mark.parametrize("config", ["{", "[]", '{"process": {"env": [1]}}'])
def test_a_configuration_that_cannot_be_read_is_refused(bundle: Bundle, config: str) -> None:
    bundle.create()
    (bundle.path / "config.json").write_text(config)
    expect_refusal(bundle, Reason.ROOTFS_UNKNOWN)
    os.truncate(bundle.path / "config.json", 1 << 40)
    expect_refusal(bundle, Reason.ROOTFS_UNKNOWN, "config.json has more than 16777216 bytes")


@pytest.mark.parametrize("of", ["bounding", "effective", "permitted", "inheritable", "ambient"])
def test_a_capability_of_any_set_that_loosens_the_limit(bundle: Bundle, of: str) -> None:
    """A setuid program in the image gets only what is in the bounding set."""
    bundle.create()
    bundle.configure(process={"capabilities": {of: ["CAP_CHOWN", "CAP_DAC_READ_SEARCH"]}})
    expect_refusal(bundle, Reason.CAPABILITY, "value DAC_READ_SEARCH: ", " the container open")
    bundle.examine(allowed={"DAC_READ_SEARCH"})


@pytest.mark.parametrize("host_pid", [True, False])
def test_to_trace_beside_the_hosts_processes(bundle: Bundle, host_pid: bool) -> None:
    bundle.capabilities, bundle.host_pid = {"bounding": ["CAP_SYS_PTRACE"]}, host_pid
    bundle.create()
    if host_pid:
        expect_refusal(bundle, Reason.CAPABILITY, "value SYS_PTRACE: ", " the container access")
    else:
        bundle.examine()


def huge_preload(root: Path) -> None:
    (root / "etc/ld.so.preload").touch()
    os.truncate(root / "etc/ld.so.preload", 1 << 40)


def fifo_preload(root: Path) -> None:
    os.mkfifo(root / "etc/ld-nix.so.preload")


def linked_directory(root: Path) -> None:
    (root / "elsewhere").mkdir()
    (root / ".gpuslice").symlink_to("elsewhere")


IMAGES: Mapping[str, tuple[Callable[[Path], None], Reason, str]] = {
    "a huge preload": (huge_preload, Reason.IMAGE_PRELOAD, "(1099511627776 bytes)"),
    "a FIFO as preload": (
        fifo_preload,
        Reason.IMAGE_PRELOAD,
        "ld-nix.so.preload: invalid value (a special file)",
    ),
    "a link as /.gpuslice": (
        linked_directory,
        Reason.IMAGE_PATH,
        "image path /.gpuslice: invalid value (a symbolic link)",
    ),
}


@pytest.mark.parametrize("case", IMAGES)
def test_an_image_in_the_way_is_refused(case: str, bundle: Bundle) -> None:
    prepare, reason, text = IMAGES[case]
    prepare(bundle.root)
    bundle.create()
    expect_refusal(bundle, reason, text)


def test_a_volume_that_a_link_of_the_image_leads_over_ours(bundle: Bundle, tmp_path: Path) -> None:
    """The image turns a harmless looking mount point into ours, and mounts are made by depth."""
    (bundle.root / "a/b/c").mkdir(parents=True)
    (bundle.root / "a/b/c/d").symlink_to("/etc")
    (tmp_path / "volume").mkdir()
    bundle.create(Mount("/a/b/c/d", str(tmp_path / "volume"), ("bind", "rw")))
    expect_refusal(
        bundle, Reason.VIEW_DIFFERS, "/etc/ld.so.preload is not the file", "it does not exist"
    )


def test_a_forwarder_is_looked_for_where_a_program_would_find_it(
    bundle: Bundle, tmp_path: Path
) -> None:
    """The image's own link at the driver's path stays, and is followed."""
    forwarder = tmp_path / "store/libcuda.so.1"
    forwarder.write_bytes(b"")
    (bundle.root / "usr/lib").mkdir(parents=True)
    (bundle.root / "lib").symlink_to("usr/lib")
    (bundle.root / "usr/lib/libcuda.so.1").symlink_to("/lib/libcuda.so.580")
    bundle.must_see("/lib/libcuda.so.1", forwarder)
    bundle.create(Mount("/lib/libcuda.so.1", str(forwarder), ("bind", "ro")))
    bundle.examine(forwarded=True)


@pytest.mark.parametrize("there", [True, False])
def test_a_forwarder_that_is_not_in_its_place(bundle: Bundle, tmp_path: Path, there: bool) -> None:
    forwarder = tmp_path / "store/libcuda.so.1"
    forwarder.write_bytes(b"")
    if there:
        (bundle.root / "lib").mkdir()
        (bundle.root / "lib/libcuda.so.1").write_bytes(b"own")
    bundle.must_see("/lib/libcuda.so.1", forwarder)
    bundle.create()
    problem = "a regular file of 3 bytes" if there else "it does not exist"
    expect_refusal(bundle, Reason.VIEW_DIFFERS, problem, forwarded=True)


def test_a_driver_that_the_agents_pod_has_elsewhere_than_the_host(
    bundle: Bundle, tmp_path: Path
) -> None:
    """Strict mode mounts the driver's own files by the host's path, which a pod lacks."""
    in_pod = tmp_path / "driver-root"
    (in_pod / "lib").mkdir(parents=True)
    (in_pod / "lib/libcuda.so.1").write_bytes(b"driver")
    root = DriverRoot(Path("/no/such/root"), in_pod)
    bundle.inspector = replace(bundle.inspector, driver_seen=root.seen)
    inside = f"{names.CONTAINER_DRIVER_DIR}/libcuda.so.1"
    bundle.must_see(inside, Path("/no/such/root/lib/libcuda.so.1"))
    bundle.create(Mount(inside, str(in_pod / "lib/libcuda.so.1"), ("bind", "ro")))
    bundle.examine(forwarded=True)
    (in_pod / "lib/libcuda.so.1").unlink()
    (in_pod / "lib/libcuda.so.1").write_bytes(b"another")
    expect_refusal(bundle, Reason.VIEW_DIFFERS, "a regular file of 6 bytes", forwarded=True)


@pytest.mark.parametrize("place", ["run", "store", "run/other"])
def test_a_volume_that_shows_the_limits_of_others(
    bundle: Bundle, tmp_path: Path, place: str
) -> None:
    """A link leads there, which only the kernel follows. Later mounts there may appear inside."""
    bundle.files.apply(planned("other", SHARES))
    (tmp_path / "link").symlink_to(tmp_path)
    bundle.create(Mount("/volume", str(tmp_path / "link" / place), ("bind", "rw")))
    exposed = f"must not expose {tmp_path}/run, which limits"
    expect_refusal(bundle, Reason.HOST_VOLUME, "mount /volume: invalid value ", exposed)


_OWN = {"type": "pid"}
_JOINED = {"type": "pid", "path": "/proc/1/ns/pid"}


@pytest.mark.parametrize(
    ("namespaces", "sees"),
    [([_OWN], False), ([_JOINED], True), ([], True), (None, True), ([{"type": "ipc"}], True)],
)
def test_a_strong_container_without_a_share_beside_one(
    bundle: Bundle, namespaces: list[dict[str, str]] | None, sees: bool
) -> None:
    bundle.mounts = ()
    bundle.create()
    capabilities = {"bounding": ["CAP_CHOWN", "CAP_SYS_ADMIN"]}
    bundle.configure(process={"capabilities": capabilities}, linux={"namespaces": namespaces})
    assert bundle.inspector.strong_beside(bundle.id) == ("SYS_ADMIN" if sees else "")
    allowing = replace(bundle.inspector, allowed={"SYS_ADMIN"})
    assert allowing.strong_beside(bundle.id) == ""


def test_a_runtime_that_runs_containers_in_a_sandbox(bundle: Bundle) -> None:
    """Kata as the node's default: the pod has no RuntimeClass, and its bundle no process."""
    bundle.create()
    (bundle.path / "init.pid").unlink()
    expect_refusal(bundle, Reason.RUNTIME_SANDBOXED, "must be runc or crun", "RuntimeClass of runc")


def test_a_label_that_may_not_use_our_files(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file is asked for what a process does with it. The kernel here is another (Kernel)."""
    bundle.create()
    bundle.configure(process={"selinuxLabel": SUBJECT})
    kernel = Kernel(tmp_path / "host", {LABEL: ALL, OF_TMPFS: bits("open", "read", "getattr")})
    bundle.inspector = replace(bundle.inspector, policy=kernel.policy)
    labels: dict[str, str] = {}
    monkeypatch.setattr(selinux, "label_of", lambda path: labels.get(str(path), LABEL))
    bundle.examine()
    library = bundle.plan.files[names.CONTAINER_LIBRARY]
    labels = {f"{bundle.files.root}/{bundle.id}/{each}": OF_TMPFS for each in ("grant", "preload")}
    bundle.examine()
    labels = {library: OF_TMPFS}
    expect_refusal(bundle, Reason.SELINUX, f"does not let {SUBJECT} execute, map a file")
    labels = {f"{bundle.files.root}/{bundle.id}/region": OF_TMPFS}
    expect_refusal(bundle, Reason.SELINUX, f"does not let {SUBJECT} map, write a file")


def test_a_file_of_the_same_number_on_another_file_system(bundle: Bundle, tmp_path: Path) -> None:
    """File systems in memory number their files alike; the first grant is a low number."""
    ours = (tmp_path / "run" / bundle.id / "grant").stat().st_ino
    (tmp_path / "own").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tmp_path / "own"], check=True)
    try:
        for number in range(ours + 1):
            own = tmp_path / "own" / str(number)
            own.touch()
            if own.stat().st_ino == ours:
                break
        else:
            pytest.skip(f"this kernel numbers files otherwise: {own.stat().st_ino}, not {ours}")
        (bundle.root / "a/b").mkdir(parents=True)
        (bundle.root / "a/b/grant").symlink_to("/.gpuslice/grant")
        bundle.create(Mount("/a/b/grant", str(own), ("bind", "ro")))
        expect_refusal(bundle, Reason.VIEW_DIFFERS, "/.gpuslice/grant is not the file")
    finally:
        subprocess.run(["umount", tmp_path / "own"], check=True)
