"""Who is told of a card that is in trouble."""

from __future__ import annotations

from dataclasses import replace

from contract import names
from nri_plugin.casualties import notices
from nri_plugin.ledger import Hold, Part
from nri_plugin.model import Card, Pod
from nri_plugin.notices import Notices

GOOD, BAD = Card("GPU-a", 0, 1000), Card("GPU-b", 1, 0, problem="GPU is lost")
POD = Pod("u1", "team", "train")


def hold(*uuids: str, container: str = "main") -> Hold:
    parts = dict.fromkeys(uuids, Part(300, 40))
    return Hold(container, container, POD.uid, container, f"team/train/{container}", parts, POD)


def test_a_share_of_a_card_in_trouble_is_told_with_the_trouble() -> None:
    (told,) = notices([hold("GPU-a", "GPU-b")], [GOOD, BAD])
    assert (told.pod, told.reason) == (POD, names.EVENT_CARD_FAILED)
    assert "card GPU-b, of which team/train/main has a share, is in trouble: GPU is lost" in (
        told.text
    )


def test_a_card_that_is_gone_is_in_trouble() -> None:
    (told,) = notices([hold("GPU-c")], [GOOD])
    assert "is in trouble: NVML does not list it" in told.text


def test_of_cards_that_are_well_nothing_is_told() -> None:
    assert list(notices([hold("GPU-a"), hold("GPU-b")], [GOOD, replace(BAD, problem="")])) == []


def test_a_pod_is_told_once_of_each_card() -> None:
    waiting = Notices()
    lost = [BAD, replace(BAD, uuid="GPU-c")]
    news = [
        waiting.add(notice)
        for container in ("main", "side")
        for notice in notices([hold("GPU-b", "GPU-c", container=container)], lost)
    ]
    assert news == [True, True, False, False]
