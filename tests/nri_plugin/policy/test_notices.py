"""Pending events: once for each container, and bounded."""

from __future__ import annotations

from nri_plugin.policy.model import Pod
from nri_plugin.policy.notices import Notice, Notices


def notice(number: int, text: str = "static") -> Notice:
    return Notice(Pod(f"{number}", "team", "train"), "main", "LimitNotEnforceable", text)


def test_a_restarted_container_is_reported_once() -> None:
    notices = Notices()
    assert notices.first() is None
    assert notices.add(notice(1))
    assert not notices.add(notice(1, "static again"))
    notices.add(notice(2))
    assert notices.first() == notice(1)
    notices.done(notice(1))
    assert notices.first() == notice(2)
    notices.done(notice(2))
    notices.done(notice(2))
    notices.add(notice(1))
    assert notices.first() is None


def test_each_notice_is_reported_once() -> None:
    """A failing driver affects every share of its node, and is found in every round."""
    live = {str(number) for number in range(1000)}
    notices = Notices(lambda: live)
    assert all(notices.add(notice(number)) for number in range(1000))
    for _ in range(3):
        assert not any(notices.add(notice(number)) for number in range(1000))
    reported = 0
    while (found := notices.first()) is not None:
        notices.done(found)
        reported += 1
    assert reported == 1000


def test_few_notices_of_deleted_pods_are_kept() -> None:
    live: set[str] = set()
    notices = Notices(lambda: live)
    for number in range(10_000):
        live.clear()
        live.add(str(number))
        notices.add(notice(number))
    first = notices.first()
    assert first is not None and int(first.pod.uid) > 9_500
    assert notices.add(notice(1))
