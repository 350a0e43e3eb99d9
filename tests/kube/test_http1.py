"""HTTP/1.1 as bytes: valid requests, refused ones, and the format of an answer."""

from __future__ import annotations

import pytest

from kube.http1 import (
    MOST_HEAD_BYTES,
    TEXT,
    Refused,
    Request,
    Requests,
    Response,
    encoded,
)

MOST = 100

GO = (
    b"POST /filter HTTP/1.1\r\nHost: 127.0.0.1:9444\r\nUser-Agent: Go-http-client/1.1\r\n"
    b"Content-Length: 5\r\nContent-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\nhello"
)
CHUNKED = b"POST /bind HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"


def post(fields: bytes, body: bytes = b"", version: bytes = b"1.1") -> bytes:
    return b"POST /x HTTP/" + version + b"\r\nHost: h\r\n" + fields + b"\r\n" + body


def request(body: bytes = b"", keeps: bool = True, path: str = "/x") -> Request:
    return Request("POST", path, body, keeps)


ACCEPTED = {
    "as Go writes it": (GO, request(b"hello", path="/filter")),
    "no body": (post(b""), request()),
    "blanks about a value": (post(b"Content-Length: \t2 \t\r\n", b"ab"), request(b"ab")),
    "the last one": (post(b"Connection: close\r\n"), request(keeps=False)),
    "the last one, in a list": (post(b"Connection: x, Close\r\n"), request(keeps=False)),
    "HTTP/1.0": (post(b"", version=b"1.0"), request(keeps=False)),
    "HTTP/1.0 without Host": (b"GET / HTTP/1.0\r\n\r\n", Request("GET", "/", b"", False)),
    "100-continue": (post(b"Expect: 100-Continue\r\nContent-Length: 1\r\n", b"a"), request(b"a")),
    "bytes that are no text": (post(b"X: \xff\xfe\r\n"), request()),
    "the most": (post(b"Content-Length: 100\r\n", b"a" * MOST), request(b"a" * MOST)),
    "chunks": (
        CHUNKED + b"3\r\nabc\r\n02;name=value\r\nde\r\n0\r\n\r\n",
        request(b"abcde", path="/bind"),
    ),
    "chunks and trailers": (
        CHUNKED + b"A\r\n0123456789\r\n0\r\nX-Sum: 7\r\nY: \r\n\r\n",
        request(b"0123456789", path="/bind"),
    ),
}

REFUSED = {
    "line feeds alone": (b"POST /x HTTP/1.1\nHost: h\r\n\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "a blank before the colon": (post(b"Content-Length : 2\r\n", b"ab"), 400),
    "a line that goes on": (post(b"X: a\r\n b\r\n"), 400),
    "NUL in a value": (post(b"X: a\x00b\r\n"), 400),
    "two lengths": (post(b"Content-Length: 2\r\nContent-Length: 3\r\n", b"abc"), 400),
    "one length twice": (post(b"Content-Length: 2\r\nContent-Length: 2\r\n", b"ab"), 400),
    "a length beyond all": (post(b"Content-Length: " + b"9" * 20 + b"\r\n"), 400),
    "a length and chunks": (
        post(b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
        400,
    ),
    "compressed": (post(b"Transfer-Encoding: gzip, chunked\r\n"), 501),
    "chunked twice": (post(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), 400),
    "an upgrade": (post(b"Connection: Upgrade\r\nUpgrade: h2c\r\n"), 501),
    "another expectation": (post(b"Expect: 200-ok\r\n"), 417),
    "more than the most": (post(b"Content-Length: 101\r\n"), 413),
    "more than the most, in chunks": (CHUNKED + b"64\r\n" + b"a" * MOST + b"\r\n1\r\na\r\n", 413),
    "a chunk longer than its size": (CHUNKED + b"2\r\nabc\r\n", 400),
    "trailers that are none": (CHUNKED + b"0\r\nnone\r\n\r\n", 400),
    "a head too large": (post(b"X: " + b"a" * MOST_HEAD_BYTES + b"\r\n"), 431),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_a_request_is_read_whole_byte_by_byte_and_with_the_next_one_behind_it(case: str) -> None:
    data, wanted = ACCEPTED[case]

    whole = Requests(MOST)
    whole.feed(data)
    assert (whole.midway, whole.next()) == (True, wanted)
    assert (whole.midway, whole.next()) == (False, None)

    slow, found = Requests(MOST), list[Request]()
    for byte in data:
        assert not found
        slow.feed(bytes((byte,)))
        found += [each for each in (slow.next(),) if each is not None]
        assert slow.midway is not bool(found)
    assert found == [wanted]

    two = Requests(MOST)
    two.feed(data + GO[:-1])
    if not wanted.keeps:
        assert two.next() == wanted
        with pytest.raises(Refused):
            two.next()
        return
    assert (two.next(), two.next(), two.midway) == (wanted, None, True)
    two.feed(GO[-1:])
    assert (two.next(), two.midway) == (request(b"hello", path="/filter"), False)


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_request_is_refused_whole_and_byte_by_byte(case: str) -> None:
    data, status = REFUSED[case]
    whole = Requests(MOST)
    whole.feed(data)
    with pytest.raises(Refused) as refused:
        whole.next()
    assert refused.value.status == status

    slow = Requests(MOST)
    with pytest.raises(Refused) as refused:
        for byte in data:
            slow.feed(bytes((byte,)))
            assert slow.next() is None
    assert refused.value.status == status


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"", b"\r\n"),
        (b"POST /", b"a"),
        (b"POST / HTTP/1.1\r\n", b"X: 1\r\n"),
        (b"POST / HTTP/1.1\r\nX: ", b"a"),
        (CHUNKED, b"0"),
        (CHUNKED + b"2;x=", b"a"),
        (CHUNKED + b"0\r\n", b"X: 1\r\n"),
        (CHUNKED + b"0\r\nX: ", b"a"),
    ],
)
def test_what_has_no_end_is_refused_before_it_takes_memory(start: bytes, more: bytes) -> None:
    receiver = Requests(MOST)
    receiver.feed(start)
    with pytest.raises(Refused) as refused:
        for _ in range(3 * MOST_HEAD_BYTES // 1000):
            receiver.feed(more * (1000 // len(more)))
            assert receiver.next() is None
    assert refused.value.status == 431


def test_a_client_that_expects_100_continue_gets_it_once() -> None:
    receiver = Requests(MOST)
    receiver.feed(post(b"Expect: 100-continue\r\nContent-Length: 2\r\n"))
    assert receiver.next() is None
    assert [receiver.take_waiting(), receiver.take_waiting()] == [True, False]
    receiver.feed(b"ab")
    assert receiver.next() == request(b"ab")


def test_a_client_that_has_sent_the_body_waits_for_nothing() -> None:
    receiver = Requests(MOST)
    receiver.feed(post(b"Expect: 100-continue\r\nContent-Length: 2\r\n", b"ab"))
    assert (receiver.next(), receiver.take_waiting()) == (request(b"ab"), False)


ANSWERS = {
    "an answer": (
        Response(b"{}"),
        True,
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    ),
    "the last one": (
        Response(b"{}"),
        False,
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\n"
        b"Content-Length: 2\r\n\r\n{}",
    ),
    "not so": (
        Response(b"POST\n", TEXT, 405, allow="POST"),
        True,
        b"HTTP/1.1 405 Method Not Allowed\r\nAllow: POST\r\n"
        b"Content-Type: text/plain; charset=utf-8\r\nContent-Length: 5\r\n\r\nPOST\n",
    ),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_answers(case: str) -> None:
    response, keeps, written = ANSWERS[case]
    assert encoded(response, keeps) == written
