"""Snapshots of a machine's state, which can be compared.

    before = look()
    ...
    assert left(before, look()) == []

A snapshot has counted, readable lines by kind. State that always changes is left out by name.
Independent of clusters; the caller passes the cgroups of interest, since cgroups are shared with
the host. Files are those of a machine of its own (alone.py): elsewhere other programs write.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from lab.node import cgroups
from tools import building

LAYERS: Final = "GPUSLICE_TEST_LAYERS"
"""The variable with the path of the changed files of a machine of its own."""
FRESH: Final = ("/dev/shm", "/tmp")
"""Empty when such a machine begins."""
_NAMESPACES: Final = ("cgroup", "ipc", "mnt", "net", "pid", "uts")

Found = Mapping[str, Counter[str]]


def look(cgroups: Iterable[str] = (), kinds: Iterable[str] = (), process: str = "self") -> Found:
    """cgroups: their names. kinds: all if none is named. process: whose namespaces are read."""
    proc = Path("/proc", process)
    found = {kind: Counter(_KINDS[kind](proc)) for kind in kinds or _KINDS}
    return {**found, "cgroup": Counter(_cgroups(cgroups))}


def left(before: Found, after: Found) -> Sequence[str]:
    """Additions and removals: one line each, none if all is as before."""
    lines = []
    for kind in after:
        for sign, more, fewer in (("+", after, before), ("-", before, after)):
            changed = more[kind] - fewer[kind]
            lines += [f"{sign} {kind}: {what}" for what in sorted(changed.elements())]
    return lines


def counted(what: Iterable[str]) -> Counter[str]:
    """Return the count as one more kind of a snapshot."""
    return Counter(what)


def pids(proc: Path = Path("/proc/self")) -> Iterator[Path]:
    """The processes in that one's PID namespace."""
    own = os.readlink(proc / "ns" / "pid")
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "ns" / "pid") == own:
                yield entry
        except OSError:  # it has exited
            continue


# --- the kinds --------------------------------------------------------------------------------


def _processes(proc: Path) -> Iterator[str]:
    for entry in pids(proc):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        yield f"{command.strip()[:200]}{' (zombie)' * (state == 'Z')}"


def _namespaces(proc: Path) -> Iterator[str]:
    """Each once, however many processes are in it; and those that only a name keeps."""
    found = set()
    for entry in pids(proc):
        for kind in _NAMESPACES:
            try:
                found.add(os.readlink(entry / "ns" / kind))
            except OSError:
                continue
    yield from found
    named = proc / "root" / "run" / "netns"
    yield from (f"netns {each.name}" for each in (named.iterdir() if named.is_dir() else ()))


def _mounts(proc: Path) -> Iterator[str]:
    for line in (proc / "mountinfo").read_text().splitlines():
        words = line.split()
        kind = words[words.index("-") + 1]
        yield f"{words[4]} ({kind}, {words[5]})"


def _interfaces(proc: Path) -> Iterator[str]:
    for line in (proc / "net" / "dev").read_text().splitlines()[2:]:
        yield line.partition(":")[0].strip()


def _sockets(proc: Path) -> Iterator[str]:
    """Those with a name, in the file system or abstract."""
    for line in (proc / "net" / "unix").read_text().splitlines()[1:]:
        words = line.split(maxsplit=7)
        if len(words) == 8:
            yield words[7]


def _files(proc: Path) -> Iterator[str]:
    """Changed or new, of any kind; directories if nothing is in them. Not those of our cache of
    programs, which is meant to stay."""
    layers = Path(os.environ.get(LAYERS, "/nowhere"))
    if not layers.is_dir():
        return
    for place in FRESH:
        yield from (f"{place}/{name}" for name in _leaves(Path(place)))
    kept = f"{building.cache_dir()}/"
    for layer in layers.glob("layer-of-*"):
        place = layer.name.removeprefix("layer-of").replace("-", "/")
        changed = (f"{place}/{name}" for name in _leaves(layer / "upper"))
        yield from (name for name in changed if not name.startswith(kept))


def _leaves(top: Path) -> Iterator[str]:
    for directory, inner, names in os.walk(top):
        here = Path(directory).relative_to(top)
        yield from (str(here / name) for name in names)
        if not inner and not names and here != Path():
            yield f"{here}/"


def _cgroups(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        for group in cgroups.named(name):
            yield str(group)
            yield from (str(inner) for inner in group.rglob("*") if inner.is_dir())


_KINDS: Final[Mapping[str, Callable[[Path], Iterator[str]]]] = {
    "process": _processes,
    "namespace": _namespaces,
    "mount": _mounts,
    "interface": _interfaces,
    "unix socket": _sockets,
    "file": _files,
}
