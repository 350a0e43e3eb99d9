"""The forwarder: a library without code that stands where programs look for the driver's.

It has the driver library's soname and needs two libraries by absolute path, ours and then the real
driver: whoever looks a name up in it, or is linked with it, meets our wrappers first and the driver
for everything else. Built once as a template with blanks for the three names, which are filled in
here; the file's length stays.
"""

from __future__ import annotations

from typing import Final

TEMPLATE: Final = "forwarder.so"
_FILLER: Final = b"."


class ForwarderError(Exception):
    """The template is not one, or a path is too long for its blanks."""


def fill(template: bytes, soname: str, library: str, driver: str) -> bytes:
    """The forwarder for the driver library `soname`; the other two are absolute paths."""
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
