"""The recorded answers of NVIDIA's drivers: their files, and their short form.

A file holds what ask.py prints of one driver, as one line per name. Derivable values are left out,
and restored when the file is read:

- a symbol whose two calls before the initialisation return "3 3" (NVML: "1 1") is listed, without
  them
- a name that cuGetProcAddress_v2 finds nowhere is in no row
- a row `"cuInit": "2000"`: the name resolves to itself from that version on, and to nothing before
- cuGetProcAddress (v1) is left out if it returns 500 and leaves the pointer alone wherever
  cuGetProcAddress_v2 finds nothing, and else the same

Pure: values in, values out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent

UNKNOWN: Final = "0 0/1/null"
_TOO_NEW: Final = "0 0/2/null"
_V1_NOTHING: Final = "500/-1/untouched"
_UNINITIALIZED: Final = {"cuda": "3 3", "nvml": "1 1"}


def recorded() -> dict[int, Path]:
    """CUDA version -> file."""
    found = (re.fullmatch(r"cuda_(\d+)\.json", path.name) for path in HERE.iterdir())
    return {int(match[1]): HERE / match[0] for match in sorted(filter(None, found), key=str)}


def _shorten_row(name: str, row: str) -> str:
    base = name.split(" ")[0]
    match = re.fullmatch(rf"{_TOO_NEW} (\d+) {base}", row)
    return match[1] if match else row


def _lengthen_row(name: str, row: str) -> str:
    return f"{_TOO_NEW} {row} {name.split(' ')[0]}" if row.isdecimal() else row


def _as_v1(row: str) -> str:
    return re.sub(r"\b0/[12]/null", _V1_NOTHING, row)


def merged(row: str) -> str:
    """The row without versions whose answer equals the preceding one's."""
    words = row.split(" ")
    pairs = list(zip(words[::2], words[1::2], strict=True))
    kept = [pair for i, pair in enumerate(pairs) if not i or pairs[i - 1][1] != pair[1]]
    return " ".join(f"{version} {answer}" for version, answer in kept)


def _calls_shortened(part: Mapping[str, Any], usual: str) -> dict[str, Any]:
    calls = part["calls"]
    rest = {
        key: value for key, value in part.items() if key not in ("calls", "exports", "resolved")
    }
    return {
        **rest,
        "not_called": [name for name in part["exports"] if name not in calls],
        "uninitialized": [name for name in calls if calls[name] == usual],
        "calls": {name: said for name, said in calls.items() if said != usual},
    }


def _calls_lengthened(part: Mapping[str, Any], usual: str) -> dict[str, Any]:
    rest = {key: value for key, value in part.items() if key not in ("not_called", "uninitialized")}
    calls = {**dict.fromkeys(part["uninitialized"], usual), **part["calls"]}
    return {**rest, "calls": calls, "exports": sorted([*part["not_called"], *calls])}


def shortened(asked: Mapping[str, Any]) -> dict[str, Any]:
    """A file's content for {"cuda": ..., "nvml": ...} as ask.py prints them."""
    document = {
        part: _calls_shortened(asked[part], usual) for part, usual in _UNINITIALIZED.items()
    }
    resolved = asked["cuda"]["resolved"]
    newest = resolved.get("cuGetProcAddress_v2", resolved["cuGetProcAddress"])
    unknown = UNKNOWN if newest is not resolved["cuGetProcAddress"] else _as_v1(UNKNOWN)
    rows = {name: _shorten_row(name, row) for name, row in newest.items() if row != unknown}
    v1 = {name: merged(_as_v1(row)) for name, row in newest.items()}
    if newest is not resolved["cuGetProcAddress"]:
        document["cuda"]["resolved"] = {"cuGetProcAddress_v2": rows}
        if v1 != resolved["cuGetProcAddress"]:
            raise ValueError("cuGetProcAddress: it differs from cuGetProcAddress_v2")
    else:
        document["cuda"]["resolved"] = {"cuGetProcAddress": rows}
    return document


def lengthened(document: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of shortened, except for names that cuGetProcAddress finds nowhere."""
    asked = {part: _calls_lengthened(document[part], _UNINITIALIZED[part]) for part in document}
    ((entry, rows),) = document["cuda"]["resolved"].items()
    whole = {name: _lengthen_row(name, row) for name, row in rows.items()}
    resolved = {entry: whole}
    if entry == "cuGetProcAddress_v2":
        resolved["cuGetProcAddress"] = {name: merged(_as_v1(row)) for name, row in whole.items()}
    asked["cuda"]["resolved"] = resolved
    return asked


def read(path: Path) -> dict[str, Any]:
    return lengthened(json.loads(path.read_text()))


def write(path: Path, asked: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(shortened(asked), indent=0, sort_keys=True) + "\n")
