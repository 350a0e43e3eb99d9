"""The types of settings, for argparse: the text of a flag or variable to its value.

Each raises ArgumentTypeError, which says what is allowed.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
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


def absolute(text: str) -> Path:
    """Normalize to an absolute path: mount sources are compared with containerd's as text."""
    path = Path(text)
    if not path.is_absolute() or ".." in path.parts:
        raise argparse.ArgumentTypeError(
            f"invalid value {text!r}: must be an absolute path without '..'"
        )
    return path


def address(text: str) -> Address | None:
    if text == "off":
        return None
    if text.startswith("unix:"):
        return absolute(text.removeprefix("unix:"))
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise argparse.ArgumentTypeError(
            f"invalid value {text!r}: must be HOST:PORT, unix:PATH or off"
        )
    return host, int(port)


def capabilities(text: str) -> AbstractSet[str]:
    """Parse a comma-separated list, as the environment has it."""
    chosen = {each.strip() for each in text.split(",") if each.strip()}
    unknown = chosen - {*CAPABILITIES, ALL}
    if unknown:
        known = ", ".join((*CAPABILITIES, ALL))
        raise argparse.ArgumentTypeError(
            f"invalid value {', '.join(sorted(unknown))!r}: must be some of {known}"
        )
    return frozenset(CAPABILITIES) if ALL in chosen else ALWAYS | chosen


def dialects(text: str) -> Sequence[Dialect]:
    known = {each.name: each for each in DIALECTS}
    chosen = [each.strip() for each in text.split(",")]
    if not known.keys() >= set(chosen):
        raise argparse.ArgumentTypeError(
            f"invalid value {text!r}: must be some of {', '.join(known)}"
        )
    return [known[name] for name in dict.fromkeys(chosen)]


def offer(text: str) -> Offer:
    chosen = frozenset(each.strip() for each in text.split(",") if each.strip())
    wrong = [each for each in chosen if not re.fullmatch("[0-9]{1,3}|GPU-[-0-9a-f]+", each)]
    if text in ("off", "any"):
        return Offer(any=text == "any")
    if wrong or not chosen:
        raise argparse.ArgumentTypeError(
            f"invalid value {text!r}: must be off, any, or indexes and UUIDs of GPUs"
        )
    return Offer(reserved=chosen)


def size(text: str) -> int:
    found = quantity.parse(text)
    if not isinstance(found, quantity.Value) or found.amount > _MAX_CODE_BYTES:
        most = quantity.format_binary(_MAX_CODE_BYTES)
        raise argparse.ArgumentTypeError(f"invalid value {text!r}: must be 0 to {most}")
    return found.amount


def loosening(text: str) -> str:
    name = plain(text)
    if name not in LOOSENING:
        raise argparse.ArgumentTypeError(
            f"invalid value {text!r}: must be one of {', '.join(LOOSENING)}"
        )
    return name


def command(text: str) -> Sequence[str]:
    try:
        return () if text == "off" else tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"invalid value {text!r}: must be a shell command: {error}"
        ) from error


def cdi_kind(text: str) -> str:
    if not re.fullmatch("[a-z0-9][a-z0-9.-]*/[A-Za-z0-9][A-Za-z0-9._-]*", text):
        raise argparse.ArgumentTypeError(f"invalid value {text!r}: must be VENDOR/CLASS")
    if text == names.CDI_KIND_MANAGEMENT:
        raise argparse.ArgumentTypeError(
            f"invalid value {text!r}: must be a kind for tenants: its device has every GPU"
        )
    return text


def node_name(text: str) -> str:
    """Validate the name: it becomes a part of paths and selectors."""
    if not re.fullmatch("[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", text):
        raise argparse.ArgumentTypeError(
            f"invalid value {text!r}: must be a node's name in lower case"
        )
    return text


def nri_index(text: str) -> str:
    if not re.fullmatch("[0-9]{2}", text):
        raise argparse.ArgumentTypeError(f"invalid value {text!r}: must be two digits, 00 to 99")
    return text
