"""SELinux: the label of our files, and whether the policy lets containers use them."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from gpuslice.contract import names
from nri_plugin.host import selinux, tmpfs
from nri_plugin.host.selinux import EXECUTE, LABEL, READ, WRITE, Policy
from tests.nri_plugin.host_files import put
from tests.nri_plugin.service_scene import sandbox

SUBJECT: Final = "system_u:system_r:container_t:s0:c1,c2"
OF_TMPFS: Final = "system_u:object_r:tmpfs_t:s0"
PERMISSIONS: Final = ("ioctl", "read", "write", "getattr", "execute", "open", "map")
ALL: Final = (1 << len(PERMISSIONS)) - 1


class Kernel:
    """A stand-in for the kernel: selinuxfs' files, and the permissions that each label has."""

    def __init__(self, host: Path, allowed: Mapping[str, int]) -> None:
        self.allowed, self.flags = allowed, 0
        self.files = host / "sys/fs/selinux"
        self.policy = Policy(host, self.answer)
        for number, (kind, known) in enumerate({"file": PERMISSIONS, "dir": ("search",)}.items()):
            put(self.files / "class" / kind / "index", f"{number + 6}\n")
            for bit, name in enumerate(known, 1):
                put(self.files / "class" / kind / "perms" / name, f"{bit}\n")
        self.enforces("1")
        self.asked: list[str] = []
        self.denied: list[tuple[str, str]] = []
        """Labels, each with a kind of files that the label may not use."""

    def enforces(self, text: str) -> None:
        put(self.files / "enforce", text)

    def answer(self, path: Path, question: str) -> str:
        assert path == self.files / "access"
        self.asked.append(question)
        subject, target, kind = question.split()
        if target not in self.allowed:
            raise OSError(errno.EINVAL, "Invalid argument")
        allowed = 0 if (subject, kind) in self.denied else self.allowed[target]
        return f"{allowed:x} ffffffff 0 ffffffff 7 {self.flags:x}"


def bits(*names: str) -> int:
    return sum(1 << PERMISSIONS.index(name) for name in names)


@pytest.mark.parametrize(
    ("wanted", "kind", "allowed", "denied"),
    [
        *((wanted, "file", ALL, "") for wanted in (READ, EXECUTE, WRITE)),
        (frozenset({"search"}), "dir", ALL, ""),
        (READ, "file", bits("getattr", "open"), f"read a file of {OF_TMPFS}"),
        (EXECUTE, "file", bits("read", "getattr", "open"), "execute, map a file"),
        (WRITE, "file", bits("read", "getattr", "open", "map"), "write a file"),
    ],
)
def test_what_the_policy_denies_is_an_objection(
    tmp_path: Path, wanted: frozenset[str], kind: str, allowed: int, denied: str
) -> None:
    kernel = Kernel(tmp_path, {OF_TMPFS: allowed})
    found = kernel.policy.objection(SUBJECT, OF_TMPFS, wanted, kind)
    assert kernel.asked == [f"{SUBJECT} {OF_TMPFS} {6 if kind == 'file' else 7}"]
    assert bool(found) is bool(denied)
    for text in (f"does not let {SUBJECT} {denied}", "install the package container-selinux"):
        assert not denied or text in found


def test_what_the_policy_does_not_enforce_is_no_objection(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, {OF_TMPFS: 0, LABEL: bits("read", "getattr", "open", "execute")})
    assert "map" in kernel.policy.objection(SUBJECT, LABEL, EXECUTE)
    (kernel.files / "class/file/perms/map").unlink()
    assert kernel.policy.objection(SUBJECT, LABEL, EXECUTE) == "", "`map` is of Linux 4.13"
    assert kernel.policy.objection(SUBJECT, OF_TMPFS, READ)
    assert kernel.policy.objection("", OF_TMPFS, READ) == "", "the process is not confined"
    kernel.flags = 0x11
    assert kernel.policy.objection(SUBJECT, OF_TMPFS, READ) == "", "its domain is permissive"
    kernel.flags = 0
    kernel.enforces("0")
    assert kernel.policy.objection(SUBJECT, OF_TMPFS, READ) == ""
    assert Policy(tmp_path / "no").objection(SUBJECT, OF_TMPFS, READ) == "", "no SELinux at all"


def test_the_answer_is_read_from_its_start(tmp_path: Path) -> None:
    """The question overwrites the start of a plain file, which is then read as the answer."""
    put(Kernel(tmp_path, {}).files / "access", "______ ffffffff 7 0")
    assert Policy(tmp_path).objection(f"{ALL:x}", "t", EXECUTE) == ""


@pytest.mark.parametrize("answer", [None, "", "ff", "x ff 0 ff 7 0"])
def test_an_answer_that_cannot_be_had_is_an_objection(tmp_path: Path, answer: str | None) -> None:
    policy = Kernel(tmp_path, {}).policy
    if answer is not None:
        policy = Policy(tmp_path, lambda path, question: answer)
    said = policy.objection(SUBJECT, LABEL, READ)
    assert said.startswith("SELinux is enforcing, and its policy cannot be read: ")


@pytest.mark.parametrize(
    ("process", "target", "found"),
    [
        ({"selinuxLabel": SUBJECT}, OF_TMPFS, "does not let"),
        ({"selinuxLabel": SUBJECT}, LABEL, ""),
        ({}, OF_TMPFS, None),
    ],
)
def test_the_label_of_a_sandbox_decides_for_the_node(
    tmp_path: Path, process: Mapping[str, str], target: str, found: str | None
) -> None:
    """found: a part of the problem's text, "" for no problem, or None if the sandbox has no label
    and therefore decides nothing."""
    kernel = Kernel(tmp_path / "host", {OF_TMPFS: 0, LABEL: ALL})
    sandbox(tmp_path, "sandbox", "runc", **process)
    of = (tmp_path, ["gone", "sandbox"], lambda: target, kernel.policy)
    text = selinux.problem(*of)
    assert text is None if found is None else found in (text or "") and bool(text) == bool(found)
    kernel.enforces("0")
    assert selinux.problem(*of) == (None if found is None else "")


@pytest.mark.parametrize("kind", ["6", "7"], ids=["file", "dir"])
@pytest.mark.parametrize("other", ["a:a:a:s0", "z:z:z:s0"])
def test_one_label_that_may_not_is_enough(tmp_path: Path, kind: str, other: str) -> None:
    """The order of the labels does not matter, nor the kind of file that is denied."""
    kernel = Kernel(tmp_path / "host", {LABEL: ALL})
    kernel.denied = [(SUBJECT, kind)]
    for name, label in (("one", SUBJECT), ("two", other)):
        sandbox(tmp_path, name, "runc", selinuxLabel=label)
    text = selinux.problem(tmp_path, ["one", "two"], lambda: LABEL, kernel.policy)
    assert f"does not let {SUBJECT}" in (text or "")


@pytest.mark.parametrize(("system", "label"), [("nodev\tselinuxfs\n", LABEL), ("", "")])
def test_the_label_is_set_with_selinux_alone(tmp_path: Path, system: str, label: str) -> None:
    systems = put(tmp_path / "filesystems", f"nodev\ttmpfs\n{system}\text4\n")
    assert selinux.label(systems) == label


@pytest.mark.parametrize(("label", "option"), [("", ""), (LABEL, f',context="{LABEL}"')])
def test_a_file_system_is_mounted_with_the_label(tmp_path: Path, label: str, option: str) -> None:
    tried = []

    def mount(path: Path, source: str, options: str) -> None:
        tried.append((path, source, options))

    tmpfs.mount(tmp_path, 4096, 8, label=label, call=mount)
    assert tried == [(tmp_path, names.PLUGIN_NAME, f"mode=0755,size=4096,nr_inodes=8{option}")]


@pytest.mark.node
def test_this_kernel_refuses_the_option_as_a_policy_without_the_type_does(tmp_path: Path) -> None:
    if selinux.label():
        pytest.skip("this kernel runs with SELinux")
    with pytest.raises(OSError) as refused:
        tmpfs._mount(tmp_path, "test", f'mode=0755,context="{LABEL}"')
    assert refused.value.errno == errno.EINVAL
    tmpfs.mount(tmp_path, 4096, 8, label=LABEL)
    assert os.path.ismount(tmp_path)
    tmpfs.clear(tmp_path)
