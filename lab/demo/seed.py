"""The pod of Koordinator's document, unchanged, and variants of it.

The document shows this pod's annotation where each GPU has 23040 MiB and the first GPU is full.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from gpuslice.contract import names

ROOT: Final = Path(__file__).resolve().parents[2]
EXAMPLES: Final = ROOT / "docs" / "examples"
PATH: Final = EXAMPLES / "koordinator" / "pod-example.yaml"
NAME: Final = "pod-example"
GPUS: Final = (23040 << 20,) * 2
SCHEDULER: Final = "koord-scheduler"
DIALECTS: Final = ("kai", "volcano", "hami")
_PERCENT: Final = 50


def shown(gpu: str) -> str:
    """Return the document's annotation, and in it the ID `gpu`, which the document lacks."""
    return (
        '{"gpu":[{"minor":1,"resources":{"koordinator.sh/gpu-core":"50","koordinator.sh/gpu-memory"'
        f':"11520Mi","koordinator.sh/gpu-memory-ratio":"50"}},"id":"{gpu}"}}]}}'
    )


def like(name: str, percent: int = _PERCENT) -> str:
    """Return the manifest of the same pod with another name and another share of a GPU."""
    text = PATH.read_text().replace(f"name: {NAME}", f"name: {name}")
    for resource in (names.RESOURCE_CORE, names.RESOURCE_MEMORY_RATIO):
        text = text.replace(f"{resource}: {_PERCENT}", f"{resource}: {percent}")
    return text


def of_a_whole_gpu(name: str) -> str:
    """Return the manifest of the same pod, but requesting a whole GPU."""
    share = r"koordinator\.sh/gpu\.shared: 1\s+\S+: 50\s+\S+: 50"
    return re.sub(share, f"{names.RESOURCE_GPU}: 100", like(name))
