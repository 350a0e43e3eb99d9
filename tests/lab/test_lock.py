"""The lock has each package that pyproject.toml requires, at one version, with hashes."""

from __future__ import annotations

import re
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support import ROOT
from tools import lock

_TEXT = (ROOT / lock.LOCK).read_text()
_LOCKED = {
    name: Version(version)
    for name, version in re.findall(r"^([\w.-]+)==(\S+)", _TEXT, re.MULTILINE)
}


def _name(requirement: Requirement) -> str:
    return canonicalize_name(requirement.name)


def test_the_lock_covers_what_pyproject_requires() -> None:
    for requirement in map(Requirement, lock.requirements(ROOT)):
        locked = _LOCKED.get(_name(requirement))
        fits = locked is not None and locked in requirement.specifier
        assert fits, f"{requirement}, locked: {locked}: run make lock"


def test_the_lock_covers_what_its_packages_require() -> None:
    for name in _LOCKED.keys() & {
        canonicalize_name(each.name) for each in metadata.distributions()
    }:
        for text in metadata.requires(name) or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                assert _name(requirement) in _LOCKED, f"{name} requires {text}: run make lock"


def test_each_package_has_hashes_and_no_address() -> None:
    packages = re.split(r"\n(?=\S)", _TEXT)
    assert len(packages) == len(_LOCKED) > 80
    assert [each for each in packages if "--hash=sha256:" not in each] == []
    assert "://" not in _TEXT and "--index" not in _TEXT


def test_the_installer_is_locked() -> None:
    assert re.fullmatch(r"uv==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+\n", lock.installer(ROOT))
