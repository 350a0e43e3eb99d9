"""What waits to be told, once for each container, and not without end."""

from __future__ import annotations

from nri_plugin.model import Pod
from nri_plugin.notices import Notice, Notices


def notice(number: int, text: str = "static") -> Notice:
    return Notice(Pod(f"{number}", "team", "train"), "main", "LimitNotEnforceable", text)


def test_a_container_that_starts_again_is_told_of_once() -> None:
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


def test_the_newest_are_kept() -> None:
    notices = Notices()
    for number in range(1000):
        notices.add(notice(number))
    first = notices.first()
    assert first is not None and int(first.pod.uid) > 800
    notices.add(notice(1))
    kept = []
    while (found := notices.first()) is not None:
        notices.done(found)
        kept.append(found.pod.uid)
    assert kept[-2:] == ["999", "1"]
