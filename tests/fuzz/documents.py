"""Targets that parse texts of users and programs: allocations, grants, whole pods, CDI specs.

Documented exceptions are AllocationError and GrantsError. The policy and the CDI reader raise
nothing, but report unusable input. Invariants: a parsed value can be written and parsed again. The
policy's answer, an adjustment or a refusal, can be sent.
"""

from __future__ import annotations

import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

from gpuslice.contract import allocation, grants, names, quantity
from nri_plugin.host import cdi_reader
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.nri import translate
from nri_plugin.policy.model import CdiDevice, Device, Edits, Gpu, Mount, Paths, Specs
from nri_plugin.policy.plan import ContainerPlan
from nri_plugin.policy.refusals import Refusal
from nri_plugin.protocol import ttrpc
from tests.fuzz.choices import Choices
from tests.nri_plugin import objects

_UUID: Final = "GPU-5e1f0a70-0000-4000-8000-000000000000"
_NAMED: Final = (
    "gpu minor resources id extension v containers main memory core"
    f" {names.RESOURCE_CORE} {names.RESOURCE_MEMORY} {names.RESOURCE_MEMORY_RATIO}"
    " kubernetes.io/gpu-memory cdiVersion kind devices name containerEdits env deviceNodes"
    " path type major hostPath containerPath mounts options hooks hookName args timeout fileMode"
    " intelRdt"
)
_KEYS: Final = _NAMED.split()
_TEXTS: Final = (
    *(_UUID, "50", "20Gi", "500m", "1e3", "0.6.0", names.CDI_KIND, "/dev/null", "A=b"),
    *("createContainer", "c", "", "-1", "9e999", "1.5Gi", "main"),
)
WORDS: Final = (*_KEYS, *_TEXTS, "{", "}", "[", "]", ":", ",", '"', "null", "true", "1e400", "NaN")
YAML_WORDS: Final = (
    *("- ", ": ", "? ", "&a ", "*a", "<<: ", "''", "|\n", ">\n", "---\n", "%YAML", "\n  "),
    *("!!int ", "!!float ", "!!bool ", "!!timestamp ", "!!binary ", "!!set ", "!!omap "),
    *("!!pairs ", "!!null ", "0x", "1:60", "0b", ".inf", "2001-01-01", "2001-01-01T00:00:00+99:99"),
)
_NUMBERS: Final = (0, 1, 50, 100, 101, -1, 2**31, 2**63, 2**64, 10**400, 0.5, 1e400)
_GPU: Final = Gpu(_UUID, 0, 40 << 30)
_LIBCUDA: Final = "/usr/lib/libcuda.so.1"
_EDITS: Final = Edits(
    env=(("A", "b"),),
    devices=(Device("/dev/nvidia0", "c", 195, 0),),
    mounts=(Mount(_LIBCUDA, _LIBCUDA, ("ro",)),),
)
_SPECS: Final = Specs({_UUID: CdiDevice(_UUID, "spec", own=_EDITS)})
_PATHS: Final = Paths("/run/gpuslice", "/store/libvgpu.so")
_NEST_MOST: Final = 4000


def document(choices: Choices, depth: int = 0) -> Any:
    """Return a JSON value that contains keys and values which the parsers know."""
    match choices.byte() % (10 if depth < 8 else 6):
        case 0:
            return choices.one_of((None, True, False))
        case 1:
            return choices.one_of(_NUMBERS)
        case 2:
            return choices.whole(4) - (1 << 24)
        case 3:
            return choices.text()
        case 4 | 5:
            return choices.one_of(_TEXTS)
        case 6 | 7:
            return [document(choices, depth + 1) for _ in range(choices.byte() % 5)]
        case _:
            members = {}
            for _ in range(choices.byte() % 7):
                key = choices.one_of(_KEYS) if choices.byte() % 8 else choices.text()
                members[key] = document(choices, depth + 1)
            return members


_NESTED: Final = (
    "DEEP",
    '{"gpu":[{"minor":DEEP}]}',
    '{"gpu":[{"minor":0,"id":DEEP}]}',
    '{"gpu":[{"minor":0,"extension":{"a":DEEP}}]}',
    '{"v":1,"containers":{"main":[{"id":DEEP}]}}',
    '{"v":1,"containers":{"main":[{"id":"a","minor":DEEP}]}}',
)


def _json(data: bytes) -> str:
    """Return the input itself, a JSON text made from the input, or JSON that is deeply nested."""
    choices = Choices(data)
    match choices.byte() % 4:
        case 0:
            return choices.rest().decode("utf-8", "surrogateescape")
        case 1:
            depth = choices.whole(2) % _NEST_MOST
            return choices.one_of(_NESTED).replace("DEEP", "[" * depth + "]" * depth)
        case _:
            return json.dumps(document(choices), ensure_ascii=choices.byte() % 2 == 0)


def allocations(data: bytes) -> None:
    try:
        read = allocation.decode(_json(data))
    except allocation.AllocationError as error:
        assert str(error)
        return
    for entries in read.devices.values():
        for entry in entries:
            assert 0 <= entry.minor < 2**31
            assert all(0 <= amount < 2**63 for amount in entry.resources.values())
    assert allocation.decode(allocation.encode(read)) == read


def container_grants(data: bytes) -> None:
    try:
        read = grants.decode(_json(data))
    except grants.GrantsError as error:
        assert str(error)
        return
    for gpus in read.values():
        assert 1 <= len(gpus) <= names.MAX_GPUS
        assert all(gpu.memory_bytes >= 1 and 0 <= gpu.core_percent <= 100 for gpu in gpus)
    assert grants.decode(grants.encode(read)) == read


def quantities(data: bytes) -> None:
    choices = Choices(data)
    raw: object = document(choices) if choices.byte() % 2 else choices.rest().decode("latin-1")
    match quantity.parse(raw):
        case quantity.Value(amount):
            assert 0 <= amount < 2**63
            assert quantity.parse(quantity.format_binary(amount)) == quantity.Value(amount)
        case quantity.Invalid(reason):
            assert reason
        case _:
            assert raw is None


def pods(data: bytes) -> None:
    """Pass a CreateContainer request through translation and policy to the bytes of the answer."""
    choices = Choices(data)
    annotations: dict[str, str] = {}
    for name in (names.ANNOTATION_DEVICE_ALLOCATED, names.ANNOTATION_GRANTS):
        if choices.byte() % 4:
            annotations[name] = _sendable(_annotation(name, choices))
    request = nri.CreateContainerRequest(
        pod=nri.PodSandbox(
            uid=_name(choices, "uid"),
            annotations=annotations,
            labels={names.LABEL_ISOLATION_PROVIDER: "HAMi-core"} if choices.byte() % 4 else {},
        ),
        container=nri.Container(
            id=_name(choices, "c0"),
            name=_name(choices, "main"),
            env=_sendables(choices),
            mounts=[nri.Mount(destination=text) for text in _sendables(choices)],
        ),
    )
    if choices.byte() % 4 == 0:
        raw = bytearray(request.SerializeToString())
        raw[choices.whole(2) % (len(raw) + 1) :] = choices.rest()
        try:
            request = nri.CreateContainerRequest.FromString(bytes(raw))
        except Exception as error:
            assert type(error).__name__ == "DecodeError"
            return
    pod, container = translate.pod(request.pod), translate.container(request.container)
    decision = objects.decide(pod, container, [_GPU], _SPECS, _PATHS)
    if isinstance(decision, Refusal):
        assert ttrpc.sendable(decision.text)
    elif isinstance(decision, ContainerPlan):
        assert sum(share.memory_bytes for share in decision.shares) <= _GPU.memory_bytes
        assert decision.key is None or "/" not in decision.key
        translate.reply(decision).SerializeToString()


def _annotation(name: str, choices: Choices) -> str:
    """Return a valid annotation with one element replaced, or any value."""
    if choices.byte() % 4 == 0:
        return _json(choices.blob())
    gpu = {"id": _UUID, "minor": 0, "memory": 1 << 30, "core": 50}
    right: Any = {"v": 1, "containers": {"main": [gpu]}}
    if name == names.ANNOTATION_DEVICE_ALLOCATED:
        right = {"gpu": [{"minor": 0, "id": _UUID, "resources": {names.RESOURCE_MEMORY: "20Gi"}}]}
    part = right
    for _ in range(choices.byte() % 6):
        values = part.values() if isinstance(part, dict) else part
        if not (inner := [each for each in values if isinstance(each, dict | list)]):
            break
        part = choices.one_of(inner)
    if choices.byte() % 2:
        key = choices.one_of(list(part) if isinstance(part, dict) else range(len(part)))
        part[key] = document(choices)
    return json.dumps(right)


def _name(choices: Choices, usual: str) -> str:
    return usual if choices.byte() % 4 else _sendable(choices.text())


def _sendables(choices: Choices) -> list[str]:
    return [_sendable(choices.text()) for _ in range(choices.byte() % 3)]


def _sendable(text: str) -> str:
    """Return the text with lone surrogates replaced, because protobuf's strings are UTF-8."""
    return text.encode("utf-8", "replace").decode()


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    """Return the directory of CDI specs. It is empty between inputs."""
    return tempfile.TemporaryDirectory(prefix="gpuslice-fuzz-")


def cdi_specs(data: bytes) -> None:
    choices = Choices(data)
    kind = choices.byte()
    path = Path(_scratch().name) / ("spec.json" if kind & 1 else "spec.yaml")
    path.write_bytes(json.dumps(_spec(choices)).encode() if kind & 2 else choices.rest())
    try:
        specs = cdi_reader.load([path.parent], status=_no_such_device)
    finally:
        path.unlink()
    problems = [*specs.problems, *(device.problem or "" for device in specs.devices.values())]
    assert all(len(problem) < 1 << 16 for problem in problems)
    for device in specs.devices.values():
        hash((device.own, device.common))


def _no_such_device(path: str) -> os.stat_result:
    raise FileNotFoundError(2, os.strerror(2), path)


def _spec(choices: Choices) -> Any:
    spec = {
        "cdiVersion": "0.6.0",
        "kind": names.CDI_KIND,
        "containerEdits": document(choices),
        "devices": [
            {"name": "a", "containerEdits": {choices.one_of(_KEYS): [document(choices)]}}
            for _ in range(choices.byte() % 4)
        ],
    }
    if choices.byte() % 4 == 0:
        spec[choices.one_of(("cdiVersion", "kind", "devices"))] = document(choices)
    return spec
