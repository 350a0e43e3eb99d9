"""Who has a share of a card that is in trouble, in words for the pod's author.

Pure. Such a pod goes on: what it holds stays counted, and the card may come back; but its programs
fail meanwhile, and nothing else tells why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from contract import names
from nri_plugin.ledger import Hold
from nri_plugin.model import Card
from nri_plugin.notices import Notice
from nri_plugin.totals import GONE


def notices(holds: Iterable[Hold], seen: Sequence[Card]) -> Iterator[Notice]:
    """One for each pod and card. seen: all that NVML tells, those in trouble too."""
    cards = {card.uuid: card for card in seen}
    for held in holds:
        for uuid in held.parts:
            card = cards.get(uuid)
            if card is None or card.problem:
                problem = GONE if card is None else card.problem
                text = (
                    f"card {uuid}, of which {held.whose} has a share, is in trouble: {problem}; its"
                    f" programs fail until the card is back; delete the pod to have it placed anew"
                )
                yield Notice(held.pod, uuid, names.EVENT_CARD_FAILED, text, action="Run")
