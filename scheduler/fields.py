"""Fields of Kubernetes' JSON, read tolerantly: what is not of its kind is not there.

Pure. For `scheduler.requests` and `scheduler.translate`, which know the paths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Json = Mapping[str, Any]

_NOTHING: Final[Json] = {}


def at(raw: Json, key: str) -> Json:
    """The object there; an empty one where there is none."""
    found = raw.get(key)
    return found if isinstance(found, dict) else _NOTHING


def objects(raw: Json, key: str) -> Sequence[Json]:
    """Those in the list there."""
    found = raw.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def texts(raw: Json, key: str) -> Mapping[str, str]:
    """Those of the object there."""
    return {name: text for name, text in at(raw, key).items() if isinstance(text, str)}
