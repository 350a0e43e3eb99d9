"""The simulated host as one frozen value, read from a small TOML file.

It reads text, opens no socket, and has no state. Every mistake in the file is a ConfigError that
names the key. A malformed value is never replaced by a default.
"""

from __future__ import annotations

import re
import tomllib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from gpuslice.contract import quantity

DEFAULT_FILE: Final = Path(__file__).with_name("default.toml")

MAX_GPUS: Final = 64
_UUID: Final = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class ConfigError(Exception):
    """The file or an option is invalid. The message names the key."""


@dataclass(frozen=True, slots=True)
class GpuConfig:
    """One GPU. The defaults describe a data-centre GPU of the Ampere generation."""

    uuid: str
    """"GPU-" and a UUID of 32 hex digits, as NVML prints it."""
    minor: int
    """The GPU's number on the host, which is also its socket's name."""
    memory_bytes: int
    """All memory of the GPU, a multiple of the granule."""
    pci_bus: int
    name: str = "NVIDIA SimGPU"
    pci_domain: int = 0
    capability_major: int = 8
    multiprocessors: int = 108
    mig_uuid: str = ""
    """"MIG-" and the UUID of the GPU's only MIG instance; "": the GPU is not in MIG mode."""

    @property
    def uuid_bytes(self) -> bytes:
        return uuid.UUID(self.uuid.removeprefix("GPU-")).bytes

    @property
    def mig_uuid_bytes(self) -> bytes:
        return uuid.UUID(self.mig_uuid.removeprefix("MIG-") or "0" * 32).bytes


@dataclass(frozen=True, slots=True)
class HostConfig:
    """The driver's properties and the GPUs."""

    driver_version: str
    cuda_version: int
    """The CUDA version as 1000 * major + 10 * minor."""
    granule_bytes: int
    """The unit in which memory is allocated and charged."""
    context_overhead_bytes: int
    """Bytes of the GPU's memory that each context takes for itself."""
    context_host_bytes: int
    """Bytes of host memory that each context takes in its process."""
    module_overhead_bytes: int
    """Bytes of a module's code if its image does not state them."""
    teardown_delay_s: float
    """How long an exited process's memory stays allocated, as during a real driver's teardown."""
    launch_default_ns: int
    """Duration of a kernel that states none."""
    time_slice_us: int
    """How long a context runs on the GPU before a waiting context runs."""
    copy_gib_per_s: float
    """The rate of copies and fills on the GPU. If it is 0, they take no time."""
    gpus: tuple[GpuConfig, ...]
    cgroup_root: str = "/sys/fs/cgroup"
    """Directory of the hierarchy whose control groups may have memory limits."""

    def with_gpus(self, sizes_bytes: Sequence[int]) -> HostConfig:
        """Return this host with one GPU of each size. Their UUIDs and PCI addresses are made up."""
        template = self.gpus[0]
        return checked(
            replace(
                self,
                gpus=tuple(
                    replace(
                        template,
                        uuid=f"GPU-5e1f0a70-0000-4000-8000-{minor:012x}",
                        minor=minor,
                        memory_bytes=size,
                        pci_bus=(0x17 + 0x4E * minor) % 0x100,
                        pci_domain=minor,
                    )
                    for minor, size in enumerate(sizes_bytes)
                ),
            )
        )


def parse_bytes(text: object, key: str) -> int:
    """Return the bytes in "40Gi", "40GiB" or a number. Raises a ConfigError that names `key`."""
    raw = text.removesuffix("B") if isinstance(text, str) else text
    match quantity.parse(raw):
        case quantity.Value(amount):
            return amount
        case quantity.Invalid(reason):
            raise ConfigError(f"{key}: {reason}")
        case _:
            raise ConfigError(f"{key}: missing")


def parse(text: str) -> HostConfig:
    """Return the host that `text` describes. Keys that it omits have their defaults."""
    try:
        given = tomllib.loads(text)
        defaults = tomllib.loads(DEFAULT_FILE.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not TOML: {error}") from error
    _reject_unknown(given, defaults, "")
    merged = {**defaults, **given}
    tables = merged["gpu"]
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError("gpu: invalid value: must be one [[gpu]] table per GPU")
    values = {attribute: read(merged[key], key) for key, attribute, read, *_ in _HOST_KEYS}
    for key in ("driver_version", "cgroup_root"):
        values[key] = _text(merged[key], key)
    gpus = tuple(_gpu(index, table) for index, table in enumerate(tables))
    return checked(HostConfig(gpus=gpus, **values))


def load(path: Path) -> HostConfig:
    try:
        return parse(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ConfigError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def _typed(value: Any, key: str, kind: type) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigError(f"{key}: invalid value {value!r}: must be {kind.__name__}")
    return value


def _text(value: object, key: str) -> Any:
    return _typed(value, key, str)


def _whole(value: object, key: str) -> Any:
    return _typed(value, key, int)


def _number(value: object, key: str) -> Any:
    return float(value) if isinstance(value, int) else _typed(value, key, float)


_HOST_KEYS: Final[tuple[tuple[str, str, Callable[[object, str], Any], float, float, str], ...]] = (
    ("cuda_version", "cuda_version", _whole, 1000, 99_999, "1000 * major + 10 * minor"),
    ("granule", "granule_bytes", parse_bytes, 1, 2**30, "1 byte to 1Gi"),
    ("context_overhead", "context_overhead_bytes", parse_bytes, 0, 2**48, "0 to 256Ti"),
    ("context_host_memory", "context_host_bytes", parse_bytes, 0, 2**36, "0 to 64Gi"),
    ("module_overhead", "module_overhead_bytes", parse_bytes, 0, 2**48, "0 to 256Ti"),
    ("teardown_delay_s", "teardown_delay_s", _number, 0, 3600, "0 to 3600"),
    ("launch_default_ns", "launch_default_ns", _whole, 0, 10**12, "0 to 10^12"),
    ("time_slice_us", "time_slice_us", _whole, 1, 10**9, "1 to 10^9"),
    ("copy_gib_per_s", "copy_gib_per_s", _number, 0, 10**6, "0 to 10^6"),
)
"""Each row: key of the file, attribute, reader, minimum, maximum, rule in error messages."""


def checked(host: HostConfig) -> HostConfig:
    """Return `host`, or raise ConfigError if it cannot be simulated."""
    if not 1 <= len(host.gpus) <= MAX_GPUS:
        raise ConfigError(f"gpu: {len(host.gpus)} GPUs: must be 1 to {MAX_GPUS}")
    version = host.driver_version
    _require(0 < len(version) < 80, "driver_version", version, "1 to 79 characters")
    root = host.cgroup_root
    _require(Path(root).is_absolute(), "cgroup_root", root, "an absolute path")
    for field, key, _, least, most, rule in _HOST_KEYS:
        value = getattr(host, key)
        _require(least <= value <= most, field, value, rule)
    for index, gpu in enumerate(host.gpus):
        _check_gpu(f"gpu[{index}]", gpu, host.granule_bytes)
    for key in ("uuid", "minor"):
        if len({getattr(gpu, key) for gpu in host.gpus}) != len(host.gpus):
            raise ConfigError(f"gpu: two GPUs with the same {key}")
    places = {(gpu.pci_domain, gpu.pci_bus) for gpu in host.gpus}
    if len(places) != len(host.gpus):
        raise ConfigError("gpu: two GPUs at the same PCI address")
    return host


def _check_gpu(where: str, gpu: GpuConfig, granule_bytes: int) -> None:
    def require(valid: bool, key: str, value: object, rule: str) -> None:
        _require(valid, f"{where}.{key}", value, rule)

    mig = not gpu.mig_uuid or _UUID.fullmatch("GPU-" + gpu.mig_uuid.removeprefix("MIG-"))
    size = gpu.memory_bytes
    require(bool(_UUID.fullmatch(gpu.uuid)), "uuid", gpu.uuid, "GPU-<lower-case UUID>")
    require(bool(mig), "mig_uuid", gpu.mig_uuid, "MIG-<lower-case UUID>")
    require(0 < len(gpu.name.encode()) < 96, "name", gpu.name, "1 to 95 bytes")
    require(0 <= gpu.minor < 256, "minor", gpu.minor, "0 to 255")
    require(
        0 < size < 2**48 and size % granule_bytes == 0,
        "memory",
        size,
        f"a positive multiple of {granule_bytes}, below 256Ti",
    )
    require(0 <= gpu.pci_bus < 256, "pci_bus", gpu.pci_bus, "0 to 255")
    for key in _COUNTS:
        require(0 < getattr(gpu, key) < 2**31, key, getattr(gpu, key), "a positive number")


def _require(valid: bool, field: str, value: object, rule: str) -> None:
    if not valid:
        raise ConfigError(f"{field}: invalid value {value!r}: must be {rule}")


_COUNTS: Final = ("capability_major", "multiprocessors")
_TEXTS: Final = ("name", "mig_uuid")


def _gpu(index: int, table: Mapping[str, Any]) -> GpuConfig:
    where = f"gpu[{index}]."
    _reject_unknown(table, ("uuid", "minor", "memory", "pci_bus", *_TEXTS, *_COUNTS), where)
    for key in ("uuid", "minor", "memory"):
        if key not in table:
            raise ConfigError(f"{where}{key}: missing")
    readers = dict.fromkeys(_TEXTS, _text) | dict.fromkeys(_COUNTS, _whole)
    return GpuConfig(
        uuid=_text(table["uuid"], f"{where}uuid"),
        minor=_whole(table["minor"], f"{where}minor"),
        memory_bytes=parse_bytes(table["memory"], f"{where}memory"),
        pci_bus=_whole(table.get("pci_bus", index + 1), f"{where}pci_bus"),
        **{key: read(table[key], where + key) for key, read in readers.items() if key in table},
    )


def _reject_unknown(
    given: Mapping[str, Any], known: Sequence[str] | Mapping[str, Any], where: str
) -> None:
    for key in given:
        if key not in known:
            raise ConfigError(f"{where}{key}: unknown: must be one of {', '.join(known)}")
