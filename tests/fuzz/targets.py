"""The table of targets. Each has a parser and a maximum input size."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.fuzz import documents, files, wire

_CORPUS: Final = Path(__file__).parent / "corpus"


def archive(target: str) -> Path:
    """Return the path of the target's corpus. Its inputs once broke an invariant, or reach much of
    the parser's code."""
    return _CORPUS / f"{target}.zip"


def corpus(target: str) -> Sequence[bytes]:
    with zipfile.ZipFile(archive(target)) as inputs:
        return [inputs.read(name) for name in sorted(inputs.namelist())]


@dataclass(frozen=True)
class Target:
    """run: the function that parses an input and raises if an invariant is broken. words: frequent
    texts of the format, for libFuzzer's dictionary."""

    about: str
    run: Callable[[bytes], None]
    words: Sequence[str] = ()
    bytes_most: int = 4096


_WORDS: Final = documents.WORDS
_CDI_WORDS: Final = (*_WORDS, *documents.YAML_WORDS)
TARGETS: Final[Mapping[str, Target]] = {
    "mux": Target("protocol/mux.py", wire.demultiplexer),
    "ttrpc": Target("protocol/ttrpc.py", wire.calls),
    "session": Target("protocol/session.py, nri_versions.py", wire.dialogue),
    "policy": Target("translate.py, annotation_claims.py, plan.py", documents.pods),
    "cdi": Target("nri_plugin/host/cdi_reader.py", documents.cdi_specs, _CDI_WORDS),
    "allocation": Target("gpuslice/contract/allocation.py", documents.allocations, _WORDS),
    "grants": Target("gpuslice/contract/grants.py", documents.container_grants, _WORDS),
    "quantity": Target("gpuslice/contract/quantity.py", documents.quantities, bytes_most=256),
    "region": Target("gpuslice/contract/region_file.py", files.regions),
    "program": Target("nri_plugin/host/entrypoint.py", files.programs, ("ELF", "#!")),
    "grant": Target("gpuslice/contract/grant_file.py", files.grant_files, bytes_most=9000),
    "library-cache": Target("gpu/library_cache.py", files.library_caches, ("libcuda.so.1",)),
}
