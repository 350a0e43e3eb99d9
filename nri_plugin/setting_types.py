"""The types of settings, for argparse: the text of a flag or variable to its value.

Each raises ArgumentTypeError, which says what is allowed.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

from gpuslice.contract import names, quantity
from gpuslice.contract.dialects import DIALECTS, Dialect
from nri_plugin.host.bundle import LOOSENING, plain
from nri_plugin.policy.capabilities import ALL, ALWAYS, CAPABILITIES
from nri_plugin.policy.gpu_modes import Offer
from nri_plugin.settings import Address

_MAX_CODE_BYTES: Final = 64 << 30


def _invalid(text: str, must: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"invalid value {text!r}: must be {must}")


def _matching(pattern: str, must: str) -> Callable[[str], str]:
    """Return the type of texts that match the pattern."""

    def convert(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise _invalid(text, must)
        return text

    return convert


nri_index: Final = _matching("[0-9]{2}", "two digits, 00 to 99")
node_name: Final = _matching("[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", "a node's name in lower case")
"""It becomes a part of paths and selectors."""
_cdi_kind: Final = _matching("[a-z0-9][a-z0-9.-]*/[A-Za-z0-9][A-Za-z0-9._-]*", "VENDOR/CLASS")


def cdi_kind(text: str) -> str:
    if text == names.CDI_KIND_MANAGEMENT:
        raise _invalid(text, "a kind for tenants: its device has every GPU")
    return _cdi_kind(text)


def absolute(text: str) -> Path:
    """Normalize to an absolute path: mount sources are compared with containerd's as text."""
    path = Path(text)
    if not path.is_absolute() or ".." in path.parts:
        raise _invalid(text, "an absolute path without '..'")
    return path


def address(text: str) -> Address | None:
    if text == "off":
        return None
    if text.startswith("unix:"):
        return absolute(text.removeprefix("unix:"))
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise _invalid(text, "HOST:PORT, unix:PATH or off")
    return host, int(port)


def capabilities(text: str) -> AbstractSet[str]:
    """Parse a comma-separated list, as the environment has it."""
    chosen = _listed(text)
    unknown = chosen - {*CAPABILITIES, ALL}
    if unknown:
        raise _invalid(", ".join(sorted(unknown)), f"some of {', '.join((*CAPABILITIES, ALL))}")
    return frozenset(CAPABILITIES) if ALL in chosen else ALWAYS | chosen


def dialects(text: str) -> Sequence[Dialect]:
    known = {each.name: each for each in DIALECTS}
    chosen = [each.strip() for each in text.split(",")]
    if not known.keys() >= set(chosen):
        raise _invalid(text, f"some of {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(chosen)]


def offer(text: str) -> Offer:
    if text in ("off", "any"):
        return Offer(any=text == "any")
    chosen = _listed(text)
    if not chosen or not all(re.fullmatch("[0-9]{1,3}|GPU-[-0-9a-f]+", each) for each in chosen):
        raise _invalid(text, "off, any, or indexes and UUIDs of GPUs")
    return Offer(reserved=chosen)


def _listed(text: str) -> frozenset[str]:
    return frozenset(each.strip() for each in text.split(",") if each.strip())


def size(text: str) -> int:
    parsed = quantity.parse(text)
    if not isinstance(parsed, quantity.Value) or parsed.amount > _MAX_CODE_BYTES:
        raise _invalid(text, f"0 to {quantity.format_binary(_MAX_CODE_BYTES)}")
    return parsed.amount


def loosening(text: str) -> str:
    name = plain(text)
    if name not in LOOSENING:
        raise _invalid(text, f"one of {', '.join(LOOSENING)}")
    return name


def command(text: str) -> Sequence[str]:
    try:
        return () if text == "off" else tuple(shlex.split(text))
    except ValueError as error:
        raise _invalid(text, f"a shell command: {error}") from error
