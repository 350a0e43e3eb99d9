"""The forwarder: a library without code that is mounted over the driver's library in strict mode.

It has the driver library's soname and two DT_NEEDED entries with absolute paths: our library, then
the real driver. Therefore a symbol lookup in the forwarder, or by a program linked with it, finds
our wrappers first, and the driver's function where we have no wrapper.
The build makes one template with padded blanks for the three names. `fill` writes the names into
the blanks; the file's length does not change.
"""

from __future__ import annotations

from typing import Final

TEMPLATE: Final = "forwarder.so"
_FILLER: Final = b"."


class ForwarderError(Exception):
    """The data is not a forwarder template, or a path is too long for its blank."""


def fill(template: bytes, soname: str, library: str, driver: str) -> bytes:
    """Return the forwarder for the driver library `soname`. library, driver: absolute paths."""
    for name, text in (("soname", soname), ("library", library), ("driver", driver)):
        template = _replace(template, b"@" + name.encode() + b"@", text.encode())
    return template


def _replace(data: bytes, mark: bytes, text: bytes) -> bytes:
    start = data.find(mark)
    if start < 0 or data.find(mark, start + 1) >= 0:
        raise ForwarderError(f"not a template of the forwarder: no blank {mark.decode()}")
    end = data.index(b"\0", start)
    if data[start:end].strip(_FILLER) != mark or not text or len(text) > end - start:
        raise ForwarderError(f"{text.decode()}: does not fit into {end - start} bytes")
    return data[:start] + text.ljust(end - start, b"\0") + data[end:]
