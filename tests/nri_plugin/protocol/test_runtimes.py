"""nri_plugin.protocol.runtimes and nri_versions: which runtimes are refused, and that the document
has the same table; the events that each runtime supports, and that no method is missing."""

from __future__ import annotations

from itertools import pairwise

import pytest

from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.protocol import nri_versions, runtimes, session_events
from nri_plugin.protocol.runtimes import RELEASES, Release
from nri_plugin.protocol.session_events import (
    EVENTS_BEFORE_0_10,
    EVENTS_SINCE_0_10,
    EventMask,
    RuntimeInfo,
)
from tests.support import ROOT

DOCUMENT = ROOT / "docs" / "runtimes.md"


def _info(name: str, version: str, nri_version: str = "") -> RuntimeInfo:
    return RuntimeInfo(name, version, nri_version, 2000)


TOO_OLD = "containerd {} is not served: its NRI (0."
OTHER = "is not served: the container runtime must be containerd (1.7.26 or newer)"


@pytest.mark.parametrize(
    ("name", "version", "nri_version", "start", "end"),
    [
        *(
            ("containerd", version, nri_version, TOO_OLD.format(version), "or newer")
            for version, nri_version in (
                *(("1.6.40", ""), ("1.7.24~ds1", ""), ("1.7.25", ""), ("1.7", "")),
                ("1.7.24", "unknown"),
            )
        ),
        *(
            (name, "1.35.0", nri_version, name or "a runtime without a name", OTHER)
            for name, nri_version in (
                *(("cri-o", ""), ("CRI-O", "v0.12.5"), ("dockerd", ""), ("", "v0.12.5")),
            )
        ),
    ],
)
def test_refused(name: str, version: str, nri_version: str, start: str, end: str) -> None:
    said = runtimes.refusal(_info(name, version, nri_version))
    assert said is not None
    assert said.startswith(start) and said.endswith(end)


@pytest.mark.parametrize(
    ("version", "nri_version"),
    [
        *(("v1.7.26", ""), ("v2.0.0", ""), ("v2.4.2", "v0.12.3"), ("1.7.24", "v0.12.0")),
        *(("devel", ""), ("", ""), ("v2.1.5-k3s1", "")),
    ],
)
def test_served(version: str, nri_version: str) -> None:
    assert runtimes.refusal(_info("containerd", version, nri_version)) is None


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


# --- the events that each supports

OLD, NEW = EVENTS_BEFORE_0_10, EVENTS_SINCE_0_10


@pytest.mark.parametrize(
    ("name", "version", "nri_version", "known"),
    [
        ("containerd", "v1.7.0", "", OLD),
        ("containerd", "v2.1.9", "", OLD),
        ("containerd", "v2.2.0", "", NEW),
        ("containerd", "v2.2.0-rc.1", "", NEW),
        ("containerd", "2.2", "", NEW),
        ("containerd", "v2.10.0", "", NEW),
        ("containerd", "2.4.2+unknown", "v0.12.3", NEW),
        ("containerd", "v9.9.9", "v0.12.0", NEW),
        ("containerd", "v9.9.9", "v0.9.0", OLD),
        ("containerd", "v2.4.0", "unknown", NEW),
        ("containerd", "v1.7.0", "unknown", OLD),
        ("containerd", "v1.7.0", "v0.10.0", NEW),
        ("containerd", "devel", "(devel)", OLD),
        ("containerd", "v2", "", OLD),
        ("containerd", "v2.99999999999999999999", "", OLD),
        ("", "", "", OLD),
        ("dockerd", "29.1.0", "v0.11.0", NEW),
    ],
)
def test_the_events_that_a_runtime_supports(
    name: str, version: str, nri_version: str, known: EventMask
) -> None:
    assert nri_versions.known_events(_info(name, version, nri_version)) == known


def test_every_event_has_its_bit() -> None:
    for number, bit in zip(range(1, 15), EventMask, strict=True):
        assert bit == 1 << (number - 1)
        assert bit.name == nri.Event.Name(nri.Event.ValueType(number))
    assert sum(EventMask) == EVENTS_SINCE_0_10


def test_every_served_event_has_a_method_and_every_method_its_empty_reply() -> None:
    served = {
        "CreateContainer",
        "StartContainer",
        "StopContainer",
        "RemoveContainer",
        "ValidateContainerAdjustment",
    }
    assert {name for name, method in nri_versions.METHODS.items() if method.event} == served
    mask = EventMask(0)
    for name in served:
        snake = "".join("_" + c if c.isupper() else c.upper() for c in name).lstrip("_")
        mask |= EventMask[snake]
    assert mask == session_events.SERVED_EVENTS
    for method in nri_versions.METHODS.values():
        assert method.response().SerializeToString() == b""
