"""nri_plugin.protocol.runtimes: which runtimes are refused, and that the document has the same
table."""

from __future__ import annotations

from itertools import pairwise

import pytest

from nri_plugin.protocol import runtimes
from nri_plugin.protocol.runtimes import RELEASES, Release
from nri_plugin.protocol.session_events import RuntimeInfo
from tests.support import ROOT

DOCUMENT = ROOT / "docs" / "runtimes.md"


def _info(name: str, version: str, nri_version: str = "") -> RuntimeInfo:
    return RuntimeInfo(name, version, nri_version, 2000)


@pytest.mark.parametrize(
    ("name", "version", "nri_version"),
    [
        ("containerd", "1.6.40", ""),
        ("containerd", "1.7.24~ds1", ""),
        ("containerd", "1.7.25", ""),
        ("containerd", "1.7", ""),
        ("containerd", "1.7.24", "unknown"),
    ],
)
def test_refused(name: str, version: str, nri_version: str) -> None:
    said = runtimes.refusal(_info(name, version, nri_version))
    assert said is not None
    assert said.startswith(f"{name} {version} is not served: its NRI (0.")
    assert said.endswith("or newer")


@pytest.mark.parametrize(
    ("name", "version", "nri_version"),
    [
        ("containerd", "v1.7.26", ""),
        ("containerd", "v2.0.0", ""),
        ("containerd", "v2.4.2", "v0.12.3"),
        ("containerd", "1.7.24", "v0.12.0"),
        ("containerd", "devel", ""),
        ("containerd", "", ""),
        ("containerd", "v2.1.5-k3s1", ""),
    ],
)
def test_served(name: str, version: str, nri_version: str) -> None:
    assert runtimes.refusal(_info(name, version, nri_version)) is None


@pytest.mark.parametrize(
    ("name", "nri_version"),
    [("cri-o", ""), ("CRI-O", "v0.12.5"), ("dockerd", ""), ("", "v0.12.5")],
)
def test_other_runtimes_are_refused_by_name(name: str, nri_version: str) -> None:
    said = runtimes.refusal(_info(name, "1.35.0", nri_version))
    assert said is not None and said.startswith(name or "a runtime without a name")
    assert said.endswith(
        "is not served: the container runtime must be containerd (1.7.26 or newer)"
    )


def test_the_table_ascends() -> None:
    for earlier, later in pairwise(RELEASES):
        assert earlier.since < later.since
        assert earlier.nri <= later.nri


def _row(release: Release) -> str:
    def yes(since: runtimes.Version) -> str:
        return "yes" if release.nri >= since else "no"

    cells = [
        f"{runtimes.SERVED} {runtimes.text(release.since)}",
        runtimes.text(release.nri),
        "**refused**" if release.refused else "yes",
        yes(runtimes.CHUNKS),
        yes(runtimes.VALIDATION),
        yes(runtimes.METHODS),
        yes(runtimes.FAILURE_POLICY),
    ]
    return f"| {' | '.join(cells)} |"


def test_the_document_has_the_table() -> None:
    start = f"| {runtimes.SERVED} "
    shown = [line for line in DOCUMENT.read_text().splitlines() if line.startswith(start)]
    expected = [_row(release) for release in RELEASES]
    assert shown == expected, "\n".join(expected)
