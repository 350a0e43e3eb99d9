"""The description of the host: what it says, and what it says about mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simgpu import config
from simgpu.config import ConfigError

CARD = """
[[card]]
uuid = "GPU-00000000-0000-0000-0000-000000000001"
minor = 3
memory = "24Gi"
"""


def test_the_default_host() -> None:
    host = config.load(config.DEFAULT_FILE)
    assert host.driver_version == "580.65.06"
    assert host.cuda_version == 13000
    assert [card.memory_bytes for card in host.cards] == [40 << 30, 40 << 30]
    assert [card.minor for card in host.cards] == [0, 1]
    assert len({card.uuid for card in host.cards}) == 2


def test_what_is_left_out_is_as_in_the_default() -> None:
    host = config.parse('teardown_delay_s = 1.5\ndriver_version = "570.1"\n' + CARD)
    assert (host.driver_version, host.cuda_version, host.teardown_delay_s) == ("570.1", 13000, 1.5)
    (card,) = host.cards
    assert (card.minor, card.memory_bytes) == (3, 24 << 30)
    assert card.uuid_bytes == bytes(15) + b"\x01"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("not toml", "not TOML"),
        ("colour = 1", "colour: not a key"),
        ("cuda_version = '13'", "cuda_version: '13' is not int"),
        ("cuda_version = true", "cuda_version: True is not int"),
        ("cuda_version = 13", "cuda_version: 1000 * major"),
        ("nvml_counts_imports = 1", "nvml_counts_imports: 1 is not bool"),
        ("driver_version = ''", "driver_version: 1 to 79"),
        ("granule = 'half'", "granule: 'half' is not a quantity"),
        ("granule = 0", "granule: 1 byte"),
        ("context_overhead = '-1'", "context_overhead: '-1' is negative"),
        ("module_overhead = '-1'", "module_overhead: '-1' is negative"),
        ("teardown_delay_s = -1", "teardown_delay_s: 0 to 3600"),
        ("teardown_delay_s = nan", "teardown_delay_s: 0 to 3600"),
        ("launch_default_ns = -1", "launch_default_ns: 0 to"),
        ("card = 1", "card: write each card"),
        ("card = []", "card: 0 cards"),
        ("[[card]]\nminor = 0\nmemory = '1Gi'", "card[0].uuid: missing"),
        (CARD + "speed = 1", "card[0].speed: not a key"),
        (CARD.replace("24Gi", "0"), "card[0].memory: a positive multiple"),
        (CARD.replace("24Gi", "1000"), "card[0].memory: a positive multiple of 2097152"),
        (CARD.replace("24Gi", "1Pi"), "card[0].memory: a positive multiple"),
        (CARD.replace("minor = 3", "minor = 256"), "card[0].minor: 0 to 255"),
        (CARD.replace("minor = 3", "minor = -1"), "card[0].minor: 0 to 255"),
        (CARD.replace("GPU-", "gpu-"), "card[0].uuid: 'gpu-"),
        (CARD + "name = ''", "card[0].name: 1 to 95"),
        (CARD + 'mig_uuid = "GPU-1"', "card[0].mig_uuid: 'GPU-1' is not MIG-"),
        (CARD + "mig_uuid = 7", "card[0].mig_uuid: 7 is not str"),
        (CARD + "pci_device = 32", "card[0].pci_device: 0 to 31"),
        (CARD + "multiprocessors = 0", "card[0].multiprocessors: a positive"),
        (CARD + CARD, "card: two cards with the same uuid"),
        (CARD + CARD.replace('01"', '02"'), "card: two cards with the same minor"),
        (
            CARD + "pci_bus = 1" + CARD.replace('01"', '02"').replace("3", "4") + "pci_bus = 1",
            "card: two cards at the same PCI address",
        ),
    ],
)
def test_a_mistake_is_named(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)):
        config.parse(text)


def test_a_capability_may_end_in_zero() -> None:
    (card,) = config.parse(CARD + "capability_minor = 0").cards
    assert card.capability_minor == 0


def test_a_card_may_have_a_mig_instance() -> None:
    (card,) = config.parse(f'{CARD}mig_uuid = "MIG-{"0" * 8}-0000-4000-8000-{"1" * 12}"').cards
    assert card.mig_uuid_bytes.hex() == "00000000000040008000111111111111"
    assert config.parse(CARD).cards[0].mig_uuid_bytes == bytes(16)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*No such file"):
        config.load(tmp_path / "absent.toml")


def test_a_mistake_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "host.toml"
    path.write_text("colour = 1")
    with pytest.raises(ConfigError, match=r"host\.toml: colour: not a key"):
        config.load(path)


def test_no_size_is_not_a_size() -> None:
    with pytest.raises(ConfigError, match="--card: missing"):
        config.parse_bytes(None, "--card")


@pytest.mark.parametrize(("text", "expected"), [("24GiB", 24 << 30), ("24Gi", 24 << 30), (5, 5)])
def test_sizes_as_people_write_them(text: object, expected: int) -> None:
    assert config.parse_bytes(text, "--card") == expected


def test_cards_by_size() -> None:
    host = config.load(config.DEFAULT_FILE).with_cards([1 << 30] * 8)
    assert [card.minor for card in host.cards] == list(range(8))
    assert len({card.uuid for card in host.cards}) == 8
    assert host.cards[0].uuid == config.load(config.DEFAULT_FILE).cards[0].uuid
