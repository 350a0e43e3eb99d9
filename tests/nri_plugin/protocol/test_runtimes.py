"""nri_plugin.protocol.runtimes and nri_versions: refused runtimes, and each version's events."""

from __future__ import annotations

import re
from itertools import pairwise

import grpc
import pytest

from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.protocol import nri_versions, runtimes
from nri_plugin.protocol.runtimes import RELEASES, Release
from nri_plugin.protocol.session_events import (
    EVENTS_BEFORE_0_10,
    EVENTS_SINCE_0_10,
    SERVED_EVENTS,
    Code,
    EventMask,
    RuntimeInfo,
)
from tests.support import ROOT

TOO_OLD = "containerd {} is not served: its NRI (0."
OTHER = "is not served: the container runtime must be containerd (1.7.26 or newer)"


def _info(name: str, version: str, nri_version: str) -> RuntimeInfo:
    return RuntimeInfo(name, version, nri_version, 2000)


@pytest.mark.parametrize(
    ("name", "version", "nri_version", "start", "end"),
    [
        *(
            ("containerd", version, "", TOO_OLD.format(version), "or newer")
            for version in ("1.6.40", "1.7.24~ds1", "1.7.25", "1.7")
        ),
        ("containerd", "1.7.24", "unknown", TOO_OLD.format("1.7.24"), "or newer"),
        ("cri-o", "1.35.0", "", "cri-o", OTHER),
        ("CRI-O", "1.35.0", "v0.12.5", "CRI-O", OTHER),
        ("dockerd", "1.35.0", "", "dockerd", OTHER),
        ("", "1.35.0", "v0.12.5", "a runtime without a name", OTHER),
    ],
)
def test_refused(name: str, version: str, nri_version: str, start: str, end: str) -> None:
    said = runtimes.refusal(_info(name, version, nri_version))
    assert said is not None
    assert said.startswith(start) and said.endswith(end)


@pytest.mark.parametrize(
    ("version", "nri_version"),
    [
        *((version, "") for version in ("v1.7.26", "v2.0.0", "devel", "", "v2.1.5-k3s1")),
        ("v2.4.2", "v0.12.3"),
        ("1.7.24", "v0.12.0"),
    ],
)
def test_served(version: str, nri_version: str) -> None:
    assert runtimes.refusal(_info("containerd", version, nri_version)) is None


def test_the_table_ascends() -> None:
    for earlier, later in pairwise(RELEASES):
        assert earlier.since < later.since
        assert earlier.nri <= later.nri


def _row(release: Release) -> str:
    since = ((0, 7, 0), runtimes.VALIDATION, (0, 12, 0), (0, 12, 4))
    cells = [
        f"{runtimes.SERVED} {runtimes.text(release.since)}",
        runtimes.text(release.nri),
        "**refused**" if release.refused else "yes",
        *("yes" if release.nri >= version else "no" for version in since),
    ]
    return f"| {' | '.join(cells)} |"


def test_the_document_has_the_table() -> None:
    lines = (ROOT / "docs" / "platforms.md").read_text().splitlines()
    shown = [line for line in lines if line.startswith(f"| {runtimes.SERVED} ")]
    expected = [_row(release) for release in RELEASES]
    assert shown == expected, "\n".join(expected)


# --- the events that each supports

OLD, NEW = EVENTS_BEFORE_0_10, EVENTS_SINCE_0_10


@pytest.mark.parametrize(
    ("version", "nri_version", "known"),
    [
        *((version, "", OLD) for version in ("v1.7.0", "v2.1.9", "v2", "v2.99999999999999999999")),
        *((version, "", NEW) for version in ("v2.2.0", "v2.2.0-rc.1", "2.2", "v2.10.0")),
        ("2.4.2+unknown", "v0.12.3", NEW),
        ("v9.9.9", "v0.12.0", NEW),
        ("v9.9.9", "v0.9.0", OLD),
        ("v2.4.0", "unknown", NEW),
        ("v1.7.0", "unknown", OLD),
        ("v1.7.0", "v0.10.0", NEW),
        ("devel", "(devel)", OLD),
        ("", "", OLD),
        ("29.1.0", "v0.11.0", NEW),
    ],
)
def test_the_events_that_a_runtime_supports(
    version: str, nri_version: str, known: EventMask
) -> None:
    assert nri_versions.known_events(_info("containerd", version, nri_version)) == known


def test_every_event_has_its_bit() -> None:
    for number, bit in zip(range(1, 15), EventMask, strict=True):
        assert bit == 1 << (number - 1)
        assert bit.name == nri.Event.Name(nri.Event.ValueType(number))
    assert sum(EventMask) == EVENTS_SINCE_0_10


def test_every_status_code_is_grpcs() -> None:
    for code in Code:
        assert grpc.StatusCode[code.name].value[0] == code


def test_every_served_event_has_a_method_and_every_method_its_empty_reply() -> None:
    served = [name for name, method in nri_versions.METHODS.items() if method.event]
    bits = {re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper() for name in served}
    assert bits == {bit.name for bit in SERVED_EVENTS}
    assert len(bits) == 5
    for method in nri_versions.METHODS.values():
        assert method.response().SerializeToString() == b""
