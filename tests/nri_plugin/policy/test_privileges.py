"""Which capabilities loosen a limit, and of which containers."""

from __future__ import annotations

import pytest

from nri_plugin.host.bundle import LOOSENING, loosening, plain

NONE: frozenset[str] = frozenset()


@pytest.mark.parametrize("name", sorted(LOOSENING.keys() - {"SYS_PTRACE"}))
@pytest.mark.parametrize("host_pid", [True, False])
def test_what_loosens_is_named_unless_it_is_allowed(name: str, host_pid: bool) -> None:
    held = frozenset({"CHOWN", name, "NET_RAW"})
    assert loosening(held, host_pid, NONE) == name
    assert loosening(held, host_pid, {name}) == ""
    assert loosening(held | LOOSENING.keys(), host_pid, {name}) not in ("", name)


def test_to_trace_loosens_where_the_hosts_processes_are_seen() -> None:
    held = frozenset({"SYS_PTRACE"})
    assert loosening(held, False, NONE) == ""
    assert loosening(held, True, NONE) == "SYS_PTRACE"
    assert loosening(held, True, held) == ""


def test_common_capabilities_do_not_loosen_the_limit() -> None:
    """containerd's default set, and the most common additions."""
    held = (
        "CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP"
        " NET_BIND_SERVICE SYS_CHROOT KILL AUDIT_WRITE IPC_LOCK NET_ADMIN SYS_NICE BPF PERFMON"
    )
    assert loosening(frozenset(held.split()), True, NONE) == ""


@pytest.mark.parametrize("name", ["SYS_ADMIN", "CAP_SYS_ADMIN", "cap_sys_admin"])
def test_a_capability_is_recognized_in_every_spelling(name: str) -> None:
    assert plain(name) == "SYS_ADMIN"
