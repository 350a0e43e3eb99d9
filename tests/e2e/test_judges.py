"""Those who judge an endurance run see what is wrong; no cluster is needed for that."""

from __future__ import annotations

import base64
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from contract import grant_file
from tests.e2e import machine, tenants
from tests.e2e.tenants import Share, Size

_SIZE = Size(1000 << 20, 100 << 20)
_SHARE = Share(1, 50, 30)
_UUID = "GPU-a"


def line(
    smi: str = "GPU-a, 500;",
    core: str = "30",
    limit_bytes: int = 500 << 20,
    core_percent: int = 30,
    total: int = 500 << 20,
    more: int = 2,
    free: int = 400 << 20,
) -> str:
    grant = grant_file.Grant(7, (grant_file.Card(_UUID, limit_bytes, core_percent, 0),))
    sealed = base64.b64encode(gzip.compress(grant_file.fresh(grant))).decode()
    taken = {"context": 0, "total": total, "free": free, "filled": 0, "more": more}
    return f"look 3|{core}|{smi}|2|{sealed}|{json.dumps(taken)}"


def test_a_look_that_is_right() -> None:
    assert tenants.verdict(line(), _SHARE, [_UUID], _SIZE) == ""
    assert tenants.number(line()) == 3


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        (line(smi="GPU-a, 1000;"), "nvidia-smi shows"),
        (line(smi="GPU-b, 500;"), "nvidia-smi shows"),
        (line(smi="GPU-a, 500;GPU-b, 500;"), "nvidia-smi shows"),
        (line(core=""), "the variable of its core"),
        (line(limit_bytes=501 << 20), "its grant says"),
        (line(core_percent=100), "its grant says"),
        (line(total=1000 << 20), "its program found"),
        (line(more=0), "its program found"),
        (line().replace("H4s", "xxx"), "its grant says {}"),
        ("sh: cuda-probe: not found", "not a look"),
    ],
)
def test_a_look_that_is_not(said: str, wrong: str) -> None:
    assert wrong in tenants.verdict(said, _SHARE, [_UUID], _SIZE)


def test_a_card_that_is_short_gives_more_a_moment_later() -> None:
    short = line(more=0, free=300 << 20)
    assert tenants.is_short(short, _SHARE, _SIZE)
    assert tenants.verdict(short, _SHARE, [_UUID], _SIZE) == ""
    assert not tenants.is_short(line(more=0), _SHARE, _SIZE)
    more = line(more=0, free=300 << 20, total=1000 << 20)
    assert "its program found" in tenants.verdict(more, _SHARE, [_UUID], _SIZE)


def test_who_asked_for_nothing_has_nothing() -> None:
    nothing = 'look 1||sh: nvidia-smi: not found;|0||{"driver": false}'
    assert tenants.verdict(nothing, None, [], _SIZE) == ""
    assert tenants.verdict(line(), None, [], _SIZE) == line()


def test_a_pod_of_each_kind_asks_for_what_it_shall_see() -> None:
    for kind, (_, shares) in tenants.KINDS.items():
        made = tenants.pod("t1", kind)
        for container, share in zip(made["spec"]["containers"], shares, strict=True):
            asked = container["resources"]["limits"].get("koordinator.sh/gpu-core")
            assert asked == (None if share is None else str(share.cards * share.core_percent))


def test_what_is_left_on_a_machine_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = tmp_path / "layer-of-etc" / "upper"
    (layer / "empty").mkdir(parents=True)
    monkeypatch.setenv(machine.LAYERS, str(tmp_path))
    monkeypatch.setattr(machine, "FRESH", ())
    kinds = ("process", "file", "unix socket", "shared memory")
    before = machine.look(kinds=kinds)
    assert machine.left(before, before) == []
    (layer / "passwd").write_text("")
    (layer / "empty").rmdir()
    with subprocess.Popen([sys.executable, "-c", "input('left behind')"], stdin=-1) as process:
        left = machine.left(before, machine.look(kinds=kinds))
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
    assert "+ file: /etc/passwd" in left
    assert "- file: /etc/empty/" in left
    assert any(each.startswith("+ process: ") and "left behind" in each for each in left)


def test_kernel_settings_and_devices_are_seen_and_do_not_change_by_themselves() -> None:
    kinds = ("kernel setting", "device", "route")
    found = machine.look(kinds=kinds)
    assert any(each.startswith("vm/overcommit_memory = ") for each in found["kernel setting"])
    assert found["device"]["/dev/null"] == 1
    assert not any("random/" in each for each in found["kernel setting"])
    assert [each for each in machine.left(found, machine.look(kinds=kinds)) if "vm/" in each] == []


def test_mounts_and_namespaces_of_another_process_are_seen() -> None:
    kinds = ("mount", "interface", "namespace")
    found = machine.look(kinds=kinds, process=str(os.getpid()))
    assert found["mount"] == machine.look(kinds=("mount",))["mount"]
    assert found["interface"]["lo"] == 1
    assert os.readlink("/proc/self/ns/net") in found["namespace"]
