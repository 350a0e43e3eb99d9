"""The rival of the columns is a rival: it answers the same. Who asks has another core than who is
asked, and tells what goes wrong."""

from __future__ import annotations

import json
import os
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bench import Result
from bench.scheduling import core, driven, fleets, verbs
from bench.scheduling.plain import choose, nodes_of


@pytest.mark.parametrize("seed", range(20))
def test_the_plain_loop_chooses_the_same_card(seed: int) -> None:
    state = fleets.filled(fleets.Size(nodes=12, pods=300))
    chance = random.Random(seed)
    rows = state.fleet.all_rows()
    for row in rows:
        for slot in range(fleets.CARDS):
            state.fleet.take(row, slot, fleets.CARD_BYTES * chance.randint(0, 60) // 100, 3)
    state.fleet.take(rows[0], 0, 0, None)
    state.fleet.give_back(rows[0], 1, 1, 1)
    if not core.fitting(state.fleet, rows).size:
        assert choose(nodes_of(state.fleet), fleets.ASKED) is None
        return
    placed = core.by_columns(state.fleet, rows)
    found = choose(nodes_of(state.fleet), fleets.ASKED)
    assert found == (placed.node, placed.shares[0].minor)


def test_a_goal_from_below_is_a_goal() -> None:
    assert Result({"a": 2.0}, {}, (), (), {"a": 2.0}).met
    assert not Result({"a": 1.9}, {}, (), (), {"a": 2.0}).met
    goals = Result({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 3.0}, (), (), {"a": 1.0}).goals
    assert goals == {"a": "<= 1.0, >= 1.0", "b": "<= 3.0"}


def test_who_calibrates_on_the_extenders_core_asks_from_another() -> None:
    """The thread that calibrates is the one that asks afterwards, and starts those that bind."""
    before = os.sched_getaffinity(0)
    driven.calibrated(max(before))
    assert os.sched_getaffinity(0) == before


class _Refusing(BaseHTTPRequestHandler):
    """An extender that names a node to who asks first, and refuses all that follows."""

    protocol_version = "HTTP/1.1"
    filtered = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        answers: dict[str, object] = {
            "/filter": {"NodeNames": ["n0"] if _Refusing.filtered < 2 else []},
            "/prioritize": [{"Host": "n0", "Score": 10}],
            "/bind": {"Error": "not to be bound"},
        }
        _Refusing.filtered += self.path == "/filter"
        body = json.dumps(answers[self.path]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_pod_that_is_not_bound_ends_the_bench() -> None:
    asked = verbs.Asked.of({"namespace": "bench", "name": "p", "uid": "u"}, b"{}", b"[]")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            with pytest.raises(RuntimeError, match="p fits nowhere"):
                driven._drive(server.server_port, [asked])
        finally:
            server.shutdown()
            serving.join()
