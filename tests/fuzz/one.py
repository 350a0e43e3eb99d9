"""One target under atheris, in a process of its own: `python -m tests.fuzz.one NAME DICTIONARY`.

Further arguments go to libFuzzer, which may end the process at any time. The target's words are
written to the file DICTIONARY in libFuzzer's format.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris


def _line(word: str) -> str:
    return '"' + "".join(f"\\x{byte:02x}" for byte in word.encode()) + '"\n'


if __name__ == "__main__":
    name, dictionary, *arguments = sys.argv[1:]
    with atheris.instrument_imports(include=["gpuslice", "nri_plugin"]):
        from tests.fuzz.targets import TARGETS
    target = TARGETS[name]
    options = [f"-max_len={target.bytes_most}", "-len_control=0"]
    if target.words:
        Path(dictionary).write_text("".join(_line(word) for word in target.words if word))
        options.append(f"-dict={dictionary}")
    atheris.Setup([sys.argv[0], *options, *arguments], target.run)
    atheris.Fuzz()
