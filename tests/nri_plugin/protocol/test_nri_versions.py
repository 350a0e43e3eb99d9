"""nri_plugin.protocol.nri_versions: the events that each runtime supports, and that no method is
missing."""

from __future__ import annotations

import pytest

from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.protocol import nri_versions, session_events
from nri_plugin.protocol.session_events import (
    EVENTS_BEFORE_0_10,
    EVENTS_SINCE_0_10,
    EventMask,
    RuntimeInfo,
)

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
    assert nri_versions.known_events(RuntimeInfo(name, version, nri_version, 2000)) == known


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
