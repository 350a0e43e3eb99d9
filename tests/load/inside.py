"""A container's view of its share: the script that prints one line per check, and its judge.

Pure. `verdict` judges a line. The limits that it expects follow from the pod's request, for GPUs of
one size. The GPUs that it expects follow from the pod's grants.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpuslice.contract import grant_file, names
from tests.load.accounts import Share

Json = dict[str, Any]

SCRIPT: Final = """\
n=0
while :; do
    n=$((n + 1))
    smi=$(nvidia-smi --query-gpu=uuid,memory.total --format=csv,noheader,nounits 2>&1 |
        tr '\\n' ';')
    brought=$(ls -d /dev/simgpu* /.gpuslice 2>/dev/null | wc -l)
    grant=$(gzip -c /.gpuslice/grant 2>/dev/null | base64 | tr -d '\\n')
    echo "look $n|$CUDA_DEVICE_SM_LIMIT_0|$smi|$brought|$grant|$(cuda-probe)"
    sleep 4
done
"""
"""`cuda-probe` allocates its whole limit of its first GPU, is refused 512 bytes more, and exits."""
_LINE: Final = re.compile(r"look (\d+)\|(.*)\|(.*)\|(\d+)\|(.*)\|(.*)")
_BLOCK_BYTES: Final = 2 << 20
_OUT_OF_MEMORY: Final = 2
"""CUDA_ERROR_OUT_OF_MEMORY."""


def uuids(pod: Json, container: str) -> Sequence[str]:
    written = pod["metadata"].get("annotations", {}).get(names.ANNOTATION_GRANTS, "{}")
    return [each["id"] for each in json.loads(written).get("containers", {}).get(container, [])]


def number(line: str) -> int:
    """Return the number of the check that printed the line, or 0 if none did."""
    matched = _LINE.fullmatch(line)
    return int(matched[1]) if matched else 0


@dataclass(frozen=True, slots=True)
class Size:
    gpu_bytes: int
    context_bytes: int


def verdict(line: str, share: Share | None, granted: Sequence[str], size: Size) -> str:
    """Return the error in the line, or "". granted: UUIDs of the container's GPUs."""
    matched = _LINE.fullmatch(line)
    if matched is None:
        return "not a look"
    _, core, smi, nodes, sealed, probe = matched.groups()
    if share is None:
        return "" if (core, nodes, sealed) == ("", "0", "") and '"driver": false' in probe else line
    memory = size.gpu_bytes * share.memory_percent // 100
    shown = dict(each.split(", ") for each in smi.split(";") if each.count(", ") == 1)
    taken = json.loads(probe)
    wrong = []
    if shown != dict.fromkeys(granted, str(memory >> 20)) or len(shown) != share.gpus:
        wrong.append(f"nvidia-smi shows {smi}")
    if core != str(share.core_percent):
        wrong.append(f"the variable of its core says {core!r}")
    if _limits(sealed) != {uuid: (memory, share.core_percent) for uuid in granted}:
        wrong.append(f"its grant says {_limits(sealed)}")
    found = (taken["context"], taken["total"], taken["filled"], taken["more"])
    held = (0, memory, 0, _OUT_OF_MEMORY)
    if found != held and (found[:2] != held[:2] or not is_short(line, share, size)):
        wrong.append(f"its program found {probe}")
    return "; ".join(wrong)


def is_short(line: str, share: Share, size: Size) -> bool:
    """Return whether the GPU lacked more than a block of the free memory that the limit promises.
    The reason is memory of a deleted pod that the driver has not freed yet."""
    matched = _LINE.fullmatch(line)
    left = size.gpu_bytes * share.memory_percent // 100 - size.context_bytes
    return matched is not None and int(json.loads(matched[6])["free"]) < left - _BLOCK_BYTES


def _limits(sealed: str) -> Mapping[str, tuple[int, int]]:
    """Return the bytes and percent for each GPU in the container's grant file, if complete."""
    try:
        grant = grant_file.decode(gzip.decompress(base64.b64decode(sealed)))
    except (OSError, EOFError, ValueError):
        return {}
    gpus = () if grant is None else grant.gpus
    return {gpu.uuid: (gpu.limit_bytes, gpu.core_percent) for gpu in gpus}
