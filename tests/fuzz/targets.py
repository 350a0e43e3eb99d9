"""The table of targets: a parser each, the exceptions it may raise, and the maximum input size."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.fuzz import documents, files, images, objects, wire

_CORPUS: Final = Path(__file__).parent / "corpus"


def archive(target: str) -> Path:
    """Inputs that once broke an invariant of the target, and inputs with high coverage of its
    parser."""
    return _CORPUS / f"{target}.zip"


def corpus(target: str) -> Sequence[bytes]:
    with zipfile.ZipFile(archive(target)) as inputs:
        return [inputs.read(name) for name in sorted(inputs.namelist())]


@dataclass(frozen=True)
class Target:
    """run: raises if an invariant is broken. documented: exceptions that may escape the parser
    itself."""

    about: str
    documented: str
    run: Callable[[bytes], None]
    bytes_most: int = 4096
    words: Sequence[str] = ()
    """Frequent words of the format, for the mutator's dictionary."""


TARGETS: Final[Mapping[str, Target]] = {
    "mux": Target("protocol/mux.py", "RemoteProtocolError", wire.demultiplexer),
    "ttrpc": Target("protocol/ttrpc.py", "RemoteProtocolError", wire.calls),
    "session": Target("protocol/session.py, nri_versions.py", "RemoteProtocolError", wire.dialogue),
    "policy": Target("translate.py, annotation_claims.py, plan.py", "nothing", documents.pods),
    "cdi": Target(
        "nri_plugin/host/cdi_reader.py",
        "nothing",
        documents.cdi_specs,
        words=(*documents.WORDS, *documents.YAML_WORDS),
    ),
    "allocation": Target(
        "gpuslice/contract/allocation.py",
        "AllocationError",
        documents.allocations,
        words=documents.WORDS,
    ),
    "grants": Target(
        "gpuslice/contract/grants.py",
        "GrantsError",
        documents.container_grants,
        words=documents.WORDS,
    ),
    "cluster": Target(
        "scheduler/kubernetes/translate.py, requests.py, scheduler/dialects/, decisions/state.py",
        "RequestError",
        objects.cluster,
        words=objects.WORDS,
    ),
    "quantity": Target("gpuslice/contract/quantity.py", "nothing", documents.quantities, 256),
    "region": Target("gpuslice/contract/region_file.py", "RegionError", files.regions),
    "program": Target(
        "nri_plugin/host/entrypoint.py", "nothing", images.programs, words=("ELF", "#!")
    ),
    "preload": Target("nri_plugin/policy/preload_list.py", "nothing", images.preload_files, 512),
    "grant": Target("gpuslice/contract/grant_file.py", "nothing", files.grant_files, 9000),
    "library-cache": Target(
        "gpuslice/gpu/library_cache.py", "nothing", files.library_caches, words=("libcuda.so.1",)
    ),
}
