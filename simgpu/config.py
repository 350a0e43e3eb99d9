"""The simulated host as one frozen value, read from a small TOML file.

Reads text, opens no socket, decides nothing at run time. Every mistake in the file is a ConfigError
that names the key; malformed values never become defaults.
"""

from __future__ import annotations

import re
import tomllib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from gpuslice.contract import quantity

DEFAULT_FILE: Final = Path(__file__).with_name("default.toml")

MAX_GPUS: Final = 64
_UUID: Final = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class ConfigError(Exception):
    """The description is invalid; the message names the key."""


@dataclass(frozen=True, slots=True)
class GpuConfig:
    """One GPU; the defaults are a data-centre GPU of the Ampere generation."""

    uuid: str
    """GPU- and 32 hex digits, as NVML prints it."""
    minor: int
    """Number of the GPU on the host; names its socket."""
    memory_bytes: int
    """The whole pool; a multiple of the granule."""
    pci_bus: int
    name: str = "NVIDIA SimGPU"
    pci_domain: int = 0
    pci_device: int = 0
    capability_major: int = 8
    capability_minor: int = 0
    multiprocessors: int = 108
    clock_khz: int = 1_410_000
    memory_clock_khz: int = 1_215_000
    bus_width_bits: int = 5120
    power_limit_mw: int = 400_000
    mig_uuid: str = ""
    """MIG- and 32 hex digits: the GPU is in MIG mode, with one instance that has all of it."""

    @property
    def uuid_bytes(self) -> bytes:
        return uuid.UUID(self.uuid.removeprefix("GPU-")).bytes

    @property
    def mig_uuid_bytes(self) -> bytes:
        return uuid.UUID(self.mig_uuid.removeprefix("MIG-") or "0" * 32).bytes


@dataclass(frozen=True, slots=True)
class HostConfig:
    """The driver and its GPUs."""

    driver_version: str
    cuda_version: int
    """1000 * major + 10 * minor."""
    granule_bytes: int
    """Allocations are charged in whole granules."""
    context_overhead_bytes: int
    """Bytes that each context itself takes from the pool."""
    context_host_bytes: int
    """Bytes of the host's memory that each context takes in its process."""
    module_overhead_bytes: int
    """Memory of a module's code, unless its text states it."""
    teardown_delay_s: float
    """How long an exited process's memory stays allocated, as during a real driver's teardown."""
    launch_default_ns: int
    """Duration of a launch that states none."""
    time_slice_us: int
    """How long a context has the GPU while others wait for it."""
    copy_gib_per_s: float
    """Rate of copies and fills on the GPU; 0: they take no time."""
    gpus: tuple[GpuConfig, ...]

    def with_gpus(self, sizes_bytes: Sequence[int]) -> HostConfig:
        """The same host with one GPU per size; identities are derived from the minor."""
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
    """Whole bytes from "40Gi", "40GiB" or a number; ConfigError names `key` otherwise."""
    raw = text.removesuffix("B") if isinstance(text, str) else text
    match quantity.parse(raw):
        case quantity.Value(amount):
            return amount
        case quantity.Invalid(reason):
            raise ConfigError(f"{key}: {reason}")
        case _:
            raise ConfigError(f"{key}: missing")


def parse(text: str) -> HostConfig:
    """The description in `text`; keys of the host that it omits keep their defaults."""
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
    return checked(
        HostConfig(
            driver_version=_typed(merged, "driver_version", str),
            cuda_version=_typed(merged, "cuda_version", int),
            granule_bytes=parse_bytes(merged["granule"], "granule"),
            context_overhead_bytes=parse_bytes(merged["context_overhead"], "context_overhead"),
            context_host_bytes=parse_bytes(merged["context_host_memory"], "context_host_memory"),
            module_overhead_bytes=parse_bytes(merged["module_overhead"], "module_overhead"),
            teardown_delay_s=float(_typed(merged, "teardown_delay_s", (int, float))),
            launch_default_ns=_typed(merged, "launch_default_ns", int),
            time_slice_us=_typed(merged, "time_slice_us", int),
            copy_gib_per_s=float(_typed(merged, "copy_gib_per_s", (int, float))),
            gpus=tuple(_gpu(index, table) for index, table in enumerate(tables)),
        )
    )


def load(path: Path) -> HostConfig:
    try:
        return parse(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ConfigError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


_HOST_RANGES: Final = (
    ("granule", "granule_bytes", 1, 2**30, "1 byte to 1Gi"),
    ("context_host_memory", "context_host_bytes", 0, 2**36, "0 to 64Gi"),
    ("teardown_delay_s", "teardown_delay_s", 0, 3600, "0 to 3600"),
    ("launch_default_ns", "launch_default_ns", 0, 10**12, "0 to 10^12"),
    ("time_slice_us", "time_slice_us", 1, 10**9, "1 to 10^9"),
    ("cuda_version", "cuda_version", 1000, 99_999, "1000 * major + 10 * minor, for example 13000"),
)
"""Key of the file, attribute, minimum, maximum, and the rule as a message states it."""


def checked(host: HostConfig) -> HostConfig:
    """`host` itself, if it can be simulated."""
    if not 1 <= len(host.gpus) <= MAX_GPUS:
        raise ConfigError(f"gpu: {len(host.gpus)} GPUs: must be 1 to {MAX_GPUS}")
    version, copies = host.driver_version, host.copy_gib_per_s
    _require(0 < len(version) < 80, "driver_version", version, "1 to 79 characters")
    for field, key, least, most, rule in _HOST_RANGES:
        value = getattr(host, key)
        _require(least <= value <= most, field, value, rule)
    _require(
        copies == 0 or 0.001 <= copies <= 10**6, "copy_gib_per_s", copies, "0, or 0.001 to 10^6"
    )
    for index, gpu in enumerate(host.gpus):
        _check_gpu(f"gpu[{index}]", gpu, host.granule_bytes)
    for key in ("uuid", "minor"):
        if len({getattr(gpu, key) for gpu in host.gpus}) != len(host.gpus):
            raise ConfigError(f"gpu: two GPUs with the same {key}")
    places = {(gpu.pci_domain, gpu.pci_bus, gpu.pci_device) for gpu in host.gpus}
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
    for key, limit in {"pci_domain": 2**16, "pci_bus": 2**8, "pci_device": 32}.items():
        value = getattr(gpu, key)
        require(0 <= value < limit, key, value, f"0 to {limit - 1}")
    for key in _COUNTS:
        value = getattr(gpu, key)
        require(0 < value + (key == "capability_minor") < 2**31, key, value, "a positive number")


def _require(valid: bool, field: str, value: object, rule: str) -> None:
    if not valid:
        raise ConfigError(f"{field}: invalid value {value!r}: must be {rule}")


_COUNTS: Final = (
    "capability_major",
    "capability_minor",
    "multiprocessors",
    "clock_khz",
    "memory_clock_khz",
    "bus_width_bits",
    "power_limit_mw",
)
_TEXTS: Final = ("name", "mig_uuid")
_OPTIONAL: Final = ("pci_domain", "pci_device", *_COUNTS)


def _gpu(index: int, table: Mapping[str, Any]) -> GpuConfig:
    where = f"gpu[{index}]."
    _reject_unknown(table, ("uuid", "minor", "memory", "pci_bus", *_TEXTS, *_OPTIONAL), where)
    for key in ("uuid", "minor", "memory"):
        if key not in table:
            raise ConfigError(f"{where}{key}: missing")
    optional: dict[str, Any] = {
        key: _typed(table, key, int, where) for key in _OPTIONAL if key in table
    }
    optional |= {key: _typed(table, key, str, where) for key in _TEXTS if key in table}
    return GpuConfig(
        uuid=_typed(table, "uuid", str, where),
        minor=_typed(table, "minor", int, where),
        memory_bytes=parse_bytes(table["memory"], f"{where}memory"),
        pci_bus=_typed(table, "pci_bus", int, where) if "pci_bus" in table else index + 1,
        **optional,
    )


def _reject_unknown(
    given: Mapping[str, Any], known: Sequence[str] | Mapping[str, Any], where: str
) -> None:
    for key in given:
        if key not in known:
            raise ConfigError(f"{where}{key}: unknown: must be one of {', '.join(known)}")


def _typed(
    table: Mapping[str, Any], key: str, kind: type | tuple[type, ...], where: str = ""
) -> Any:
    value = table[key]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join(each.__name__ for each in kinds)
        raise ConfigError(f"{where}{key}: invalid value {value!r}: must be {wanted}")
    return value
