"""The caller has another core than the extender, and a pod that is not bound ends the bench. Goals
are for figures as they were measured, and not for quick runs."""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from bench import Result, __main__
from bench.scheduling import blocking, caller, fleets, stage, throughput, verbs
from bench.scheduling.figures import Figures, Round
from lab.cluster import manifests
from scheduler.core.fit import fit
from scheduler.kubernetes import requests


def test_a_goal_from_below_is_a_goal() -> None:
    assert Result({"a": 2.0}, {}, (), (), {"a": 2.0}).met
    assert not Result({"a": 1.9}, {}, (), (), {"a": 2.0}).met
    goals = Result({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 3.0}, (), (), {"a": 1.0}).goals
    assert goals == {"a": "<= 1.0, >= 1.0", "b": "<= 3.0"}


@pytest.mark.parametrize("quick", [False, True])
def test_a_quick_run_is_marked_and_judges_no_goal(
    quick: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missed = SimpleNamespace(run=lambda _: Result({"a": 2.0}, {"a": 1.0}, ("", ""), ()))
    monkeypatch.setitem(sys.modules, "bench.shim", missed)
    assert __main__.main(["shim", "--quick" if quick else "--check"]) == (0 if quick else 1)
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["quick"], said["met"]) == (quick, None if quick else False)
    assert said["goals"] == ({} if quick else {"a": "<= 1.0"})


def test_a_quick_run_cannot_be_checked() -> None:
    with pytest.raises(SystemExit):
        __main__.main(["shim", "--quick", "--check"])


def test_the_goal_is_for_what_was_measured_however_fast_the_machine_was() -> None:
    figures = Figures()
    figures.add_rounds("x_s", [Round(9, 8, 16), Round(7, 16, 8), Round(8, 8, 8)], 8.5)
    assert figures.values["x_s"] == 8
    assert figures.values["x_s_round_1"] == 9 and figures.values["x_s_round_1_after_ms"] == 16
    assert not Result(figures.values, {}, (), (), figures.at_least).met
    assert [row[1] for row in figures.rows] == ["8", "7 to 9", "8.0 to 16.0"]


@pytest.mark.parametrize("held", [0, 300])
@pytest.mark.parametrize("mix", [fleets.ONE, fleets.TENTH, fleets.WIDE], ids=lambda mix: mix.about)
def test_the_pods_that_should_fit_do_and_the_others_do_not(mix: fleets.Mix, held: int) -> None:
    fleet = fleets.filled(fleets.Size(nodes=12, pods=held)).fleet
    for number in range(10):
        for pod in (
            caller.pod(number, mix.asked(number)),
            stage.asking_pod("p", mix.asked(number)),
        ):
            asked = requests.request(pod)
            assert asked is not None
            assert fit(fleet, asked, fleet.all_rows())[0].any() == mix.fits(number)
    assert sum(map(mix.fits, range(100))) == (90 if mix.misfits else 100)


def test_each_call_is_measured_while_pods_wait_that_fit_nowhere() -> None:
    measured = blocking.measure(fleets.Size(nodes=12, pods=96), pods=12)
    preemptions = {f"preempt_{count}" for count in blocking.VICTIMS}
    assert measured.longest_s.keys() == {"filter", "prioritize", "queue", *preemptions}
    assert all(measured.longest_s.values())


def test_stock_is_the_profile_that_kube_scheduler_comes_with(tmp_path: Path) -> None:
    (ours := tmp_path / "ours.yaml").write_text(yaml.safe_dump(manifests.configuration()))
    bare, stock = (
        yaml.safe_load(throughput.config_without(ours, tmp_path / "x.yaml", each).read_text())
        for each in (False, True)
    )
    assert stock["profiles"] == [{"schedulerName": "gpuslice-scheduler"}]
    assert bare["clientConnection"] == stock["clientConnection"]
    assert "extenders" not in bare | stock


def test_calibration_leaves_the_caller_on_its_core() -> None:
    """The thread that calibrates is the one that asks afterwards, and starts those that bind."""
    before = os.sched_getaffinity(0)
    verbs.calibrated(max(before))
    assert os.sched_getaffinity(0) == before


class _Refusing(BaseHTTPRequestHandler):
    """An extender that names a node to the first request, and refuses all that follows."""

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
    asked = verbs.PodCalls.of({"metadata": {"namespace": "bench", "name": "p", "uid": "u"}}, b"[]")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            with pytest.raises(RuntimeError, match="p fits nowhere"):
                verbs.drive(server.server_port, [asked], 1)
        finally:
            server.shutdown()
            serving.join()
