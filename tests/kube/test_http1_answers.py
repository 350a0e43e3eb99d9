"""HTTP/1.1 from the client's side: valid answers, invalid ones, and the format of a request."""

from __future__ import annotations

import pytest

from kube.http1 import MOST_HEAD_BYTES, Answer, Answers, Refused, Requests, fields_of, request

MOST = 100

GO = (
    b"HTTP/1.1 201 Created\r\nAudit-Id: 1-2\r\nCache-Control: no-cache, private\r\n"
    b"Content-Type: application/json\r\nDate: Sun, 01 Nov 2026 00:00:00 GMT\r\n"
    b"Content-Length: 5\r\n\r\nhello"
)


def answered(fields: bytes, body: bytes = b"", start: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return start + b"\r\n" + fields + b"\r\n" + body


READ = {
    "as Go writes it": (GO, Answer(201, b"hello", True)),
    "without a phrase": (
        answered(b"Content-Length: 1\r\n", b"a", b"HTTP/1.1 404 "),
        Answer(404, b"a", True),
    ),
    "the last one": (
        answered(b"Connection: close\r\nContent-Length: 2\r\n", b"ab"),
        Answer(200, b"ab", False),
    ),
    "HTTP/1.0": (
        answered(b"Content-Length: 2\r\n", b"ab", b"HTTP/1.0 200 OK"),
        Answer(200, b"ab", False),
    ),
    "chunks": (
        answered(b"Transfer-Encoding: chunked\r\n", b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"),
        Answer(200, b"abc", True),
    ),
    "no content": (answered(b"", b"", b"HTTP/1.1 204 No Content"), Answer(204, b"", True)),
    "not modified, of a length": (
        answered(b"Content-Length: 7\r\n", b"", b"HTTP/1.1 304 Not Modified"),
        Answer(304, b"", True),
    ),
    "behind another that is none yet": (
        answered(b"", b"", b"HTTP/1.1 103 Early Hints") + GO,
        Answer(201, b"hello", True),
    ),
    "the most": (answered(b"Content-Length: 100\r\n", b"a" * MOST), Answer(200, b"a" * MOST, True)),
}

REFUSED = {
    "HTTP/2": answered(b"Content-Length: 0\r\n", b"", b"HTTP/2 200"),
    "two lengths": answered(b"Content-Length: 1\r\nContent-Length: 2\r\n", b"ab"),
    "a length and chunks": answered(b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
    "too much": answered(b"Content-Length: 101\r\n", b"a" * (MOST + 1)),
    "too much, without a length": answered(b"", b"a" * (MOST + 1)),
    "a head without an end": b"HTTP/1.1 200 OK\r\nX: " + b"a" * MOST_HEAD_BYTES,
}


@pytest.mark.parametrize("case", READ)
def test_an_answer_is_read_whole_byte_by_byte_and_with_the_next_one_behind_it(case: str) -> None:
    data, wanted = READ[case]
    whole = Answers(MOST)
    whole.feed(data)
    assert (whole.next(), whole.midway) == (wanted, False)

    slow, found = Answers(MOST), list[Answer]()
    for byte in data:
        assert not found
        slow.feed(bytes((byte,)))
        found += [each for each in (slow.next(),) if each is not None]
    assert (found, slow.midway) == ([wanted], False)

    two = Answers(MOST)
    two.feed(data + GO)
    assert (two.next(), two.midway) == (wanted, True)
    if wanted.keeps:
        assert two.next() == Answer(201, b"hello", True)


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_answer_is_refused(case: str) -> None:
    whole = Answers(MOST)
    whole.feed(REFUSED[case])
    with pytest.raises(Refused):
        whole.next()


def test_an_answer_that_ends_with_its_connection_is_never_whole() -> None:
    answers = Answers(MOST)
    answers.feed(answered(b"", b"half of it"))
    assert (answers.next(), answers.midway) == (None, True)


def test_a_request_is_one_that_a_server_reads() -> None:
    fields = fields_of({"Host": "h:1", "Authorization": "Bearer a.b-c"})
    requests = Requests(MOST)
    requests.feed(request(b"POST", "/api/p%20q?timeout=3.000s", fields, b"{}"))
    found = requests.next()
    assert found is not None
    assert (found.method, found.path, found.body) == ("POST", "/api/p%20q?timeout=3.000s", b"{}")


@pytest.mark.parametrize("value", ["a\r\nX: b", "a\nb", "a\r\n\r\nPOST /", "a\x00"])
def test_a_value_that_would_be_more_than_one_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="header Authorization: invalid value: must have"):
        fields_of({"Host": "h", "Authorization": value})


@pytest.mark.parametrize("path", ["", "p", "/a b", "/a\r\n", "/ä", "/a\x00"])
def test_a_path_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="must be an absolute path"):
        request(b"POST", path, b"", b"")
