"""Setup first checks what is missing, and whether the environment is still valid."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lab.node.lab import CLUSTER_FILES
from tests.support import run
from tools import setup
from tools.lock import LOCK


def test_the_demos_build_has_what_its_images_contain() -> None:
    """A complete build would hide what `make demo` alone fails to build for its images."""
    built = {path.name for path, _ in CLUSTER_FILES.values()}
    assert built <= set(setup.GOALS["demo"].targets)


def test_without_root_setup_names_the_packages_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Setup continues without runc, and stops without a compiler."""
    wanted = "sudo apt-get install --yes --no-install-recommends "
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(setup, "missing_packages", lambda without: ["runc"])
    setup.system_packages()
    assert f"{wanted}runc" in capsys.readouterr().err
    monkeypatch.setattr(setup, "missing_packages", lambda without: ["gcc", "runc"])
    with pytest.raises(setup.SetupError, match=f"{wanted}gcc runc"):
        setup.system_packages()


def test_another_requirement_or_lock_makes_the_environment_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment with additional packages is valid. The demo's environment lacks packages of
    the tests, and is not valid for them."""
    text = (setup.ROOT / "pyproject.toml").read_text()
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").write_text(text)
    locked = tmp_path / LOCK
    locked.write_text("uvloop==0.21.0\n")
    before = setup._made_from(["lab", "dev"])
    assert setup._made_from(["lab"]) < before
    locked.write_text("uvloop==0.22.0\n")
    assert not setup._made_from(["lab"]) <= before
    locked.write_text("uvloop==0.21.0\n")
    (tmp_path / "pyproject.toml").write_text(text.replace('"uvloop>=', '"uvloop>=99.'))
    assert not setup._made_from(["lab"]) <= before


def test_builds_of_a_checkout_that_was_moved_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    for name, built_at in {"dev": tmp_path, "asan": tmp_path / "before"}.items():
        (tmp_path / "build" / name).mkdir(parents=True)
        cache = tmp_path / "build" / name / "CMakeCache.txt"
        cache.write_text(f"A:B=c\nCMAKE_HOME_DIRECTORY:INTERNAL={built_at}\n")
    setup._remove_builds_of_another_path()
    assert os.listdir(tmp_path / "build") == ["dev"]


_TARGETS = re.findall(r"^([a-z0-9-]+):", (setup.ROOT / "Makefile").read_text(), re.MULTILINE)


def _make(checkout: Path, target: str) -> subprocess.CompletedProcess[str]:
    checkout.mkdir(exist_ok=True)
    shutil.copy(setup.ROOT / "Makefile", checkout)
    return run("make", "--dry-run", "--directory", checkout, target)


@pytest.mark.parametrize("name", ["a b", "a:b", "a$b", "a=b"])
def test_make_refuses_a_checkout_whose_path_the_loader_cannot_take(
    tmp_path: Path, name: str
) -> None:
    assert _make(tmp_path / "A-b_c.d+e@f~g,h", "help").returncode == 0
    for target in _TARGETS if name == "a b" else ["help"]:
        done = _make(tmp_path / name, target)
        assert done.returncode == 2, target
        (line,) = done.stderr.splitlines()
        assert "checkout: invalid path " in line and "must not contain a space" in line
        assert not done.stdout.replace("make: Entering directory", "").count("\n") > 2, target
