"""A second writer of the same fields: when the agent yields, and which writer it names."""

from __future__ import annotations

from nri_plugin.kube.node_status import CONTEST_S, CONTEST_WRITES, Contest, other_writer
from tests.support import Clock


def fight(contest: Contest, clock: Clock, every_s: float, rounds: int) -> list[bool]:
    """The agent's desired state stays the same, and the object is overwritten each time."""
    may = []
    for number in range(rounds):
        may.append(contest.may_write("80Gi", f"{clock.seconds}-{number}"))
        clock.seconds += every_s
    return may


def test_a_field_in_a_lasting_contest_is_left_to_the_other_client() -> None:
    clock = Clock()
    contest = Contest(clock)
    assert not contest.lasts
    assert fight(contest, clock, 1, CONTEST_WRITES + 2) == [True] * CONTEST_WRITES + [False] * 2
    assert contest.lasts
    clock.seconds += CONTEST_S
    assert contest.may_write("80Gi", "x"), "it is tried again"
    assert contest.lasts, "and not yet known to be over"
    clock.seconds += CONTEST_S
    assert not contest.lasts


def test_a_contest_that_goes_on_is_not_forgotten() -> None:
    clock = Clock()
    contest = Contest(clock)
    for _ in range(20):
        fight(contest, clock, CONTEST_S / (2 * CONTEST_WRITES), CONTEST_WRITES)
    assert contest.lasts


def test_what_a_kubelet_does_at_its_starts_is_none() -> None:
    clock = Clock()
    contest = Contest(clock)
    assert all(fight(contest, clock, CONTEST_S / (CONTEST_WRITES - 1) + 1, 50))
    assert not contest.lasts


def test_other_wishes_and_late_news_are_none() -> None:
    clock = Clock()
    contest = Contest(clock)
    assert all(contest.may_write(f"{n}Gi", str(n)) for n in range(50))
    assert all(contest.may_write("80Gi", "the same") for _ in range(50))


def test_the_other_writer_has_a_name() -> None:
    def entry(manager: str, at: str, field: str) -> dict[str, object]:
        return {"manager": manager, "time": at, "fieldsV1": {"f:spec": {field: {}}}}

    fields = [
        entry("koord-manager", "2026-01-01T00:00:01Z", "f:devices"),
        entry("koordlet", "2026-01-01T00:00:02Z", "f:devices"),
        entry("gpuslice-agent", "2026-01-01T00:00:03Z", "f:devices"),
        entry("kubelet", "2026-01-01T00:00:04Z", "f:conditions"),
    ]
    assert other_writer({"metadata": {"managedFields": fields}}) == "koordlet"
    assert other_writer({"metadata": {}}) == ""
