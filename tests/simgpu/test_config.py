"""The file that describes a simulated host: its values, and error messages about them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simgpu import config
from simgpu.config import ConfigError

GPU = """
[[gpu]]
uuid = "GPU-00000000-0000-0000-0000-000000000001"
minor = 3
memory = "24Gi"
"""


def test_the_default_host_and_one_with_gpus_by_size() -> None:
    host = config.load(config.DEFAULT_FILE)
    assert (host.driver_version, host.cuda_version) == ("580.65.06", 13000)
    assert [(gpu.minor, gpu.memory_bytes) for gpu in host.gpus] == [(0, 40 << 30), (1, 40 << 30)]
    more = host.with_gpus([1 << 30] * 8)
    assert [gpu.minor for gpu in more.gpus] == list(range(8))
    assert len({gpu.uuid for gpu in more.gpus}) == 8
    assert [gpu.uuid for gpu in more.gpus[:2]] == [gpu.uuid for gpu in host.gpus]


def test_what_is_left_out_is_as_in_the_default() -> None:
    host = config.parse('teardown_delay_s = 1.5\ndriver_version = "570.1"\n' + GPU)
    assert (host.driver_version, host.cuda_version, host.teardown_delay_s) == ("570.1", 13000, 1.5)
    (gpu,) = host.gpus
    assert (gpu.minor, gpu.memory_bytes) == (3, 24 << 30)
    assert gpu.uuid_bytes == bytes(15) + b"\x01"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("not toml", "not TOML"),
        ("colour = 1", "colour: unknown"),
        ("cuda_version = '13'", "cuda_version: invalid value '13': must be int"),
        ("cuda_version = 13", "cuda_version: invalid value 13: must be 1000 * major"),
        ("driver_version = ''", "driver_version: invalid value '': must be 1 to 79"),
        ("granule = 'half'", "granule: invalid value 'half': must be a quantity"),
        ("granule = 0", "granule: invalid value 0: must be 1 byte"),
        ("teardown_delay_s = -1", "teardown_delay_s: invalid value -1.0: must be 0 to 3600"),
        ("time_slice_us = 0", "time_slice_us: invalid value 0: must be 1 to"),
        ("copy_gib_per_s = -1.0", "copy_gib_per_s: invalid value -1.0: must be 0 to"),
        ("gpu = 1", "gpu: invalid value: must be one [[gpu]] table"),
        ("[[gpu]]\nminor = 0\nmemory = '1Gi'", "gpu[0].uuid: missing"),
        (GPU + "speed = 1", "gpu[0].speed: unknown"),
        (GPU.replace("24Gi", "0"), "gpu[0].memory: invalid value 0: must be a positive"),
        (GPU.replace("24Gi", "1000"), "gpu[0].memory: invalid value 1000: must be a positive mul"),
        (GPU.replace("24Gi", "1Pi"), "below 256Ti"),
        (GPU.replace("= 3", "= 256"), "gpu[0].minor: invalid value 256: must be 0 to 255"),
        (GPU.replace("GPU-", "gpu-"), "gpu[0].uuid: invalid value 'gpu-"),
        (GPU + 'mig_uuid = "GPU-1"', "gpu[0].mig_uuid: invalid value 'GPU-1': must be MIG-"),
        (GPU + "pci_bus = 256", "gpu[0].pci_bus: invalid value 256: must be 0 to 255"),
        (GPU + GPU, "gpu: two GPUs with the same uuid"),
        (GPU + GPU.replace('01"', '02"'), "gpu: two GPUs with the same minor"),
        (
            GPU + "pci_bus = 1" + GPU.replace('01"', '02"').replace("3", "4") + "pci_bus = 1",
            "gpu: two GPUs at the same PCI address",
        ),
    ],
)
def test_a_mistake_is_named(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)):
        config.parse(text)


def test_a_gpu_may_have_a_mig_instance() -> None:
    (gpu,) = config.parse(f'{GPU}mig_uuid = "MIG-{"0" * 8}-0000-4000-8000-{"1" * 12}"').gpus
    assert gpu.mig_uuid_bytes.hex() == "00000000000040008000111111111111"
    assert config.parse(GPU).gpus[0].mig_uuid_bytes == bytes(16)


def test_a_mistake_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "host.toml"
    path.write_text("colour = 1")
    with pytest.raises(ConfigError, match=r"host\.toml: colour: unknown"):
        config.load(path)
