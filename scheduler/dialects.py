"""The dialects in which containers ask for shares: each a reader in a table.

Pure. A dialect gets the pod's annotations and its containers, and says what each asks for, by
itself: Koordinator's own scheduler sums a pod's containers, and we do not.
A request that is not allowed is refused as it is read: the text names the field, its value and what
is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from contract import names, quantity
from scheduler.core.fleet import MAX_BYTES
from scheduler.core.request import WHOLE_PERCENT, Ask, Phase


class RequestError(ValueError):
    """The pod asks for something that cannot be granted as written, on any node."""


@dataclass(frozen=True, slots=True)
class Container:
    """resources: as written, under canonical names; a request, or else the limit."""

    name: str
    phase: Phase
    order: int
    resources: Mapping[str, object]


Dialect = Callable[[Mapping[str, str], Sequence[Container]], Sequence[Ask]]
"""(the pod's annotations, its containers) -> what they ask for in this dialect."""

_GPU: Final = names.RESOURCE_GPU
_CORE: Final = names.RESOURCE_CORE
_MEMORY: Final = names.RESOURCE_MEMORY
_RATIO: Final = names.RESOURCE_MEMORY_RATIO
_SHARED: Final = names.RESOURCE_SHARED

RESOURCES: Final = frozenset({_GPU, _CORE, _MEMORY, _RATIO, _SHARED})
"""By which shares are asked for, in any dialect."""

_OF_CARDS: Final = ("koordinator.sh/gpu", "kubernetes.io/gpu")

_LEGAL: Final = frozenset(
    frozenset(each)
    for each in (
        {_GPU},
        {_MEMORY},
        {_RATIO},
        {_CORE, _MEMORY},
        {_CORE, _RATIO},
        {_SHARED, _MEMORY},
        {_SHARED, _RATIO},
        {_SHARED, _CORE, _MEMORY},
        {_SHARED, _CORE, _RATIO},
    )
)
_ALLOWED: Final = (
    f"allowed are {_GPU} by itself; or one of {_MEMORY} and {_RATIO}, with {_CORE} or without, and"
    f" with {_SHARED} or without"
)


def misnamed(resource: str) -> str:
    """What is wrong with the name of a resource that is to be of cards; "" if nothing is. No node
    has one of another name, and a pod that asked for it would wait for ever: Koordinator's own
    scheduler writes new names for old before it schedules, the stock one does not."""
    if resource in RESOURCES or not resource.lower().startswith(_OF_CARDS):
        return ""
    new = names.DEPRECATED_RESOURCES.get(resource)
    if new is not None:
        return f" is under an old name; allowed is {new}"
    return f"; allowed are {', '.join(sorted(RESOURCES))}"


def koordinator(annotations: Mapping[str, str], containers: Sequence[Container]) -> Sequence[Ask]:
    """Source: koordinator pkg/scheduler/plugins/deviceshare (utils.go, devicehandler_gpu.go), and
    its mutating webhook where that makes a request fit which would not without."""
    asks = []
    for container in containers:
        asked = _amounts(container)
        if asked:
            asks.append(_koordinator_ask(container, asked))
    return asks


def _amounts(container: Container) -> Mapping[str, int]:
    """What is asked for of ours; what is zero is not asked for, as in Kubernetes."""
    amounts = {}
    for name in (_GPU, _CORE, _MEMORY, _RATIO, _SHARED):
        read = quantity.parse(container.resources.get(name))
        if isinstance(read, quantity.Invalid):
            raise RequestError(f"container {container.name}: {name}: {read.reason}")
        if isinstance(read, quantity.Value) and read.amount:
            amounts[name] = read.amount
    return amounts


def _koordinator_ask(container: Container, asked: Mapping[str, int]) -> Ask:
    who = f"container {container.name}"
    if frozenset(asked) not in _LEGAL:
        written = ", ".join(f"{name}: {amount}" for name, amount in asked.items())
        raise RequestError(f"{who}: {written}; {_ALLOWED}")
    cards = _cards(asked)
    if cards > names.MAX_CARDS:
        raise RequestError(f"{who}: asks for {cards} cards; allowed are 1 to {names.MAX_CARDS}")
    even = _SHARED in asked
    if _GPU in asked:
        percent = _percent(who, _GPU, asked[_GPU], cards, even)
        return Ask(container.name, container.phase, container.order, cards, percent, None, percent)
    core = _percent(who, _CORE, asked[_CORE], cards, even) if _CORE in asked else None
    ratio = _percent(who, _RATIO, asked[_RATIO], cards, even) if _RATIO in asked else None
    memory = _bytes(who, asked[_MEMORY], cards) if _MEMORY in asked else None
    return Ask(container.name, container.phase, container.order, cards, core, memory, ratio)


def _cards(asked: Mapping[str, int]) -> int:
    """Over how many cards the amounts are spread. Core alone tells where no ratio does, as
    Koordinator's webhook has it: without, 200 percent of core would be asked of one card."""
    if _SHARED in asked:
        return asked[_SHARED]
    telling = asked.get(_GPU) or asked.get(_RATIO) or asked.get(_CORE) or 0
    whole = telling > WHOLE_PERCENT and telling % WHOLE_PERCENT == 0
    return telling // WHOLE_PERCENT if whole else 1


def _percent(who: str, name: str, total: int, cards: int, even: bool) -> int:
    """Of each card. even: gpu.shared says over how many, and the total must divide by that."""
    if even and total % cards:
        allowed = f"with {_SHARED}: {cards} a multiple of {cards}"
        raise RequestError(f"{who}: {name}: {total}; allowed is {allowed}")
    if not even and total > WHOLE_PERCENT and total % WHOLE_PERCENT:
        allowed = f"1 to {WHOLE_PERCENT}, or a multiple of {WHOLE_PERCENT} for whole cards"
        raise RequestError(f"{who}: {name}: {total}; allowed are {allowed}")
    each = total // cards
    if not 1 <= each <= WHOLE_PERCENT:
        allowed = f"{cards} to {WHOLE_PERCENT * cards}, for {cards} of them"
        raise RequestError(
            f"{who}: {name}: {total} is {each} percent of a card; allowed are {allowed}"
        )
    return each


def _bytes(who: str, total: int, cards: int) -> int:
    each = total // cards
    if not 1 <= each <= MAX_BYTES:
        allowed = f"{cards} to {MAX_BYTES * cards}, for {cards} of them"
        raise RequestError(
            f"{who}: {_MEMORY}: {total} is {each} bytes of a card; allowed are {allowed}"
        )
    return each


DIALECTS: Final[Mapping[str, Dialect]] = {"Koordinator": koordinator}


def read(annotations: Mapping[str, str], containers: Sequence[Container]) -> Sequence[Ask]:
    """What the containers ask for, in whichever dialect; empty: for no share.

    Raises RequestError, also where two dialects are mixed.
    """
    found = {
        name: asks for name, read in DIALECTS.items() if (asks := read(annotations, containers))
    }
    if len(found) > 1:
        raise RequestError(f"asks in the dialects of {' and '.join(found)}; allowed is one")
    return next(iter(found.values()), ())
