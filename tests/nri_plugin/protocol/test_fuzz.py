"""For any bytes of a peer, only RemoteProtocolError escapes, and memory stays bounded.

Three kinds of input: noise, well-formed frames of noise, and the real dialogue with bytes changed.
"""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.messages import ttrpc_pb2
from nri_plugin.protocol import dialect, events, mux
from nri_plugin.protocol.errors import RemoteProtocolError
from nri_plugin.protocol.events import Code
from nri_plugin.protocol.session import Session
from tests.nri_plugin.objects import container, pod
from tests.nri_plugin.protocol.vectors import REGISTER_OK

EXAMPLES = settings(max_examples=200, deadline=None)

payloads = st.one_of(
    st.binary(max_size=64),
    st.builds(
        lambda more, n: nri.SynchronizeRequest(
            pods=[pod(n)], containers=[container(n)], more=more
        ).SerializeToString(),
        st.booleans(),
        st.integers(0, 3),
    ),
    st.builds(
        lambda n: nri.StateChangeEvent(
            event=nri.Event.ValueType(n), container=container()
        ).SerializeToString(),
        st.integers(0, 20),
    ),
)
requests = st.builds(
    lambda service, method, payload, timeout: ttrpc_pb2.Request(
        service=service, method=method, payload=payload, timeout_nano=timeout
    ).SerializeToString(),
    st.sampled_from([dialect.PLUGIN_SERVICE] * 4 + ["other"]),
    st.sampled_from([*dialect.METHODS, "Other"]),
    payloads,
    st.integers(-(1 << 63), (1 << 63) - 1),
)
messages = st.builds(
    lambda length, stream, kind, flags, data: (
        struct.pack(">IIBB", len(data) if length is None else length, stream, kind, flags) + data
    ),
    st.one_of(
        st.none(), st.none(), st.none(), st.integers(0, 1 << 32).map(lambda n: n - (n >> 32))
    ),
    st.integers(0, 60),
    st.sampled_from([1, 1, 1, 1, 2, 3, 0, 255]),
    st.integers(0, 255),
    st.one_of(requests, st.binary(max_size=40)),
)
frames = st.builds(mux.frames, st.sampled_from([1, 1, 1, 1, 2, 0, 9]), messages)
streams = st.one_of(
    st.binary(max_size=300),
    st.lists(frames, max_size=12).map(b"".join),
    st.lists(frames, max_size=6).map(lambda parts: REGISTER_OK + b"".join(parts)),
)


def drive(session: Session, data: bytes, cuts: list[int], answers: list[int]) -> None:
    """Feed `data` in pieces, answering requests in varying ways."""
    bounds = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[a:b] for a, b in itertools.pairwise(bounds)]
    for n, piece in enumerate(pieces):
        for event in session.receive_data(piece):
            if not isinstance(event, events.Request) or session.closed:
                continue
            answer = answers[n % len(answers)]
            if answer == 0:
                session.respond(event.request_id)
            elif answer == 1:
                session.fail(event.request_id, Code.UNKNOWN, "no")
        mux.Demultiplexer().feed(session.data_to_send())
        assert len(session._server._parser._buffer) < len(data) + 1


@EXAMPLES
@given(
    data=streams,
    cuts=st.lists(st.integers(0, 1 << 16), max_size=8),
    answers=st.lists(st.integers(0, 2), min_size=1, max_size=4),
)
def test_only_documented_errors_escape(data: bytes, cuts: list[int], answers: list[int]) -> None:
    session = Session(name="gpuslice", index="50")
    session.register()
    try:
        drive(session, data, cuts, answers)
    except RemoteProtocolError:
        assert session.closed


def dialogue() -> bytes:
    parts = [REGISTER_OK]
    calls = [
        ("Configure", nri.ConfigureRequest(runtime_name="containerd", runtime_version="2.4.2")),
        ("Synchronize", nri.SynchronizeRequest(pods=[pod()], containers=[container()])),
        ("CreateContainer", nri.CreateContainerRequest(pod=pod(), container=container())),
        ("StateChange", nri.StateChangeEvent(event=nri.START_CONTAINER, container=container())),
        ("RemoveContainer", nri.RemoveContainerRequest(pod=pod(), container=container())),
    ]
    for n, (method, message) in enumerate(calls):
        data = ttrpc_pb2.Request(
            service=dialect.PLUGIN_SERVICE, method=method, payload=message.SerializeToString()
        ).SerializeToString()
        parts.append(mux.frames(1, struct.pack(">IIBB", len(data), 2 * n + 1, 1, 0) + data))
    return b"".join(parts)


@EXAMPLES
@given(
    changes=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=6),
    cuts=st.lists(st.integers(0, 1 << 16), max_size=8),
    answers=st.lists(st.integers(0, 2), min_size=1, max_size=4),
)
def test_a_dialogue_with_changed_bytes(
    changes: list[tuple[int, int]], cuts: list[int], answers: list[int]
) -> None:
    data = bytearray(dialogue())
    for position, value in changes:
        data[position % len(data)] = value
    session = Session(name="gpuslice", index="50")
    session.register()
    try:
        drive(session, bytes(data), cuts, answers)
    except RemoteProtocolError:
        assert session.closed


def test_the_unchanged_dialogue_is_heard_whole() -> None:
    """The control of the above: the unchanged dialogue works."""
    session = Session(name="gpuslice", index="50")
    session.register()
    heard: list[str] = []
    for n in range(len(data := dialogue())):
        for event in session.receive_data(data[n : n + 1]):
            heard.append(type(event).__name__)
            if isinstance(event, events.Request):
                session.respond(event.request_id)
    assert heard == [
        "Registered",
        "Configured",
        "Synchronize",
        "CreateContainer",
        "StartContainer",
        "RemoveContainer",
    ]
    with pytest.raises(RemoteProtocolError):
        session.receive_data(REGISTER_OK)
