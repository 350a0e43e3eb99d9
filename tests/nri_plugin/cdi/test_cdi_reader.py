"""CDI specs as files on disk, the broken ones included."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuslice.contract import names
from nri_plugin.host import cdi_reader, cdi_vendor
from nri_plugin.host.cdi_reader import Reader
from nri_plugin.policy.model import Device, Edits, Hook, HookStage, Mount, Specs
from nri_plugin.policy.refusals import Refused, is_shortage
from tests.descriptors import no_descriptors
from tests.nri_plugin.cdi_nodes import NODES

CTK = """\
cdiVersion: 0.5.0
kind: nvidia.com/gpu
containerEdits:
  env:
    - NVIDIA_VISIBLE_DEVICES=void
  deviceNodes:
    - path: /dev/nvidiactl
    - path: /dev/nvidia-uvm
  mounts:
    - hostPath: /usr/lib/libcuda.so.580
      containerPath: /usr/lib/libcuda.so.580
      options: [ro, nosuid, nodev, bind]
  hooks:
    - hookName: createContainer
      path: /usr/bin/nvidia-cdi-hook
      args: [nvidia-cdi-hook, update-ldcache, --folder, /usr/lib]
      timeout: 5
devices:
  - name: GPU-1
    containerEdits:
      deviceNodes:
        - path: /dev/nvidia0
          hostPath: /dev/host0
          fileMode: 438
  - name: all
    containerEdits:
      deviceNodes:
        - {path: /dev/nvidia0, hostPath: /dev/host0, uid: 0, gid: 44}
        - {path: /dev/nvidia-of-tomorrow, type: c, major: 7, minor: 9}
"""


def spec(*devices: Mapping[str, Any], **fields: Any) -> str:
    """Devices without edits of their own get those of a GPU."""
    whole = [{"containerEdits": {"deviceNodes": NODES}, **device} for device in devices]
    return json.dumps({"cdiVersion": "0.6.0", "kind": names.CDI_KIND, "devices": whole, **fields})


LIBCUDA = "/usr/lib/libcuda.so.580"
NUMBERS = {"/dev/nvidiactl": (195, 255), "/dev/nvidia-uvm": (511, 0), "/dev/host0": (195, 0)}


def node(path: str, numbers: Mapping[str, tuple[int, int]] = NUMBERS) -> os.stat_result:
    numbers = {"/dev/sd": (8, 1), "/dev/null": (1, 3), **numbers}
    if path in {"/dev/plain", "/a", LIBCUDA}:
        return os.stat_result([stat.S_IFREG | 0o644] + [0] * 9)
    if path not in numbers:
        raise FileNotFoundError(2, "No such file or directory", path)
    kind = stat.S_IFBLK if path == "/dev/sd" else stat.S_IFCHR
    return os.stat_result([kind | 0o666] + [0] * 9, {"st_rdev": os.makedev(*numbers[path])})


def test_what_nvidia_ctk_writes(tmp_path: Path) -> None:
    (tmp_path / "nvidia.yaml").write_text(CTK)
    specs = cdi_reader.load([tmp_path], status=node)
    assert specs.problems == ()
    assert set(specs.devices) == {"GPU-1", "all"}
    gpu = specs.devices["GPU-1"]
    assert gpu.problem is None
    assert gpu.own == Edits(devices=(Device("/dev/nvidia0", "c", 195, 0, 438),))
    assert gpu.common == Edits(
        env=(("NVIDIA_VISIBLE_DEVICES", "void"),),
        devices=(Device("/dev/nvidiactl", "c", 195, 255), Device("/dev/nvidia-uvm", "c", 511, 0)),
        mounts=(Mount(LIBCUDA, LIBCUDA, ("ro", "nosuid", "nodev", "bind")),),
        hooks=(
            Hook(
                HookStage.CREATE_CONTAINER,
                "/usr/bin/nvidia-cdi-hook",
                ("nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib"),
                (),
                5,
            ),
        ),
    )
    assert specs.devices["all"].own.devices == (
        Device("/dev/nvidia0", "c", 195, 0, None, 0, 44),
        Device("/dev/nvidia-of-tomorrow", "c", 7, 9),
    )


def test_later_directories_outrank_earlier_ones(tmp_path: Path) -> None:
    for name in ("low", "high"):
        directory = tmp_path / name
        directory.mkdir()
        edits = {"env": [f"FROM={name}"], "deviceNodes": NODES}
        (directory / "s.json").write_text(spec({"name": "G", "containerEdits": edits}))
    specs = cdi_reader.load([tmp_path / "low", tmp_path / "high"])
    assert specs.devices["G"].own.env == (("FROM", "high"),)
    specs = cdi_reader.load([tmp_path / "high", tmp_path / "low"])
    assert specs.devices["G"].own.env == (("FROM", "low"),)


PLUGIN = names.CDI_KINDS[1]


def test_the_first_kind_with_the_gpu_counts(tmp_path: Path) -> None:
    """Whatever the directories: the device plugin writes into the one that outranks the others."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a/s.json").write_text(spec({"name": "G"}))
    (tmp_path / "b/p.json").write_text(spec({"name": "G"}, {"name": "H"}, kind=PLUGIN))
    every = spec({"name": "all"}, kind=names.CDI_KIND_MANAGEMENT)
    (tmp_path / "b/m.json").write_text(every)
    directories = [tmp_path / "a", tmp_path / "b"]
    found = cdi_reader.load(directories).devices
    assert {name: device.kind for name, device in found.items()} == {
        "G": names.CDI_KIND,
        "H": PLUGIN,
    }
    assert found["G"].problem is None, "two kinds are two devices"
    assert cdi_reader.load(directories, [PLUGIN, names.CDI_KIND]).devices["G"].kind == PLUGIN


def test_a_device_twice_in_one_directory_is_unusable(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(spec({"name": "G"}, {"name": name}))
    specs = cdi_reader.load([tmp_path])
    problem = specs.devices["G"].problem
    assert problem is not None
    assert "defines it too" in problem
    assert specs.devices["a"].problem is None


BROKEN_FILES: Mapping[str, tuple[str, str]] = {
    "not JSON": ("{", "Expecting property name"),
    "not an object": ("[]", "the spec: invalid type list: must be an object"),
    "future version": (spec(cdiVersion="2.0.0"), "cdiVersion: invalid value '2.0.0'"),
    "no version": (spec(cdiVersion=None), "cdiVersion: invalid value None: must be a string"),
    "devices not a list": (spec(devices={}), "devices: invalid type dict: must be a list"),
    "device without a name": (spec({}), "devices[0].name: invalid value None"),
    "not text": ("\xff", "codec can't decode"),
}


@pytest.mark.parametrize("case", BROKEN_FILES)
def test_a_broken_file_is_named_and_hurts_no_other(case: str, tmp_path: Path) -> None:
    text, problem = BROKEN_FILES[case]
    (tmp_path / "broken.json").write_bytes(text.encode("latin-1"))
    (tmp_path / "good.json").write_text(spec({"name": "G"}))
    specs = cdi_reader.load([tmp_path])
    assert list(specs.devices) == ["G"]
    assert len(specs.problems) == 1
    assert specs.problems[0].startswith(f"{tmp_path}/broken.json: ")
    assert problem in specs.problems[0]


def test_files_that_are_no_specs(tmp_path: Path) -> None:
    (tmp_path / "net.json").write_text(json.dumps({"cdiVersion": "9", "kind": "x.com/nic"}))
    (tmp_path / "README").write_text("not a spec")
    assert cdi_reader.load([tmp_path, tmp_path / "absent"]) == Specs()
    (tmp_path / "b.json").write_text(" " * (5 << 20))
    (tmp_path / "c.json").symlink_to("nowhere")
    (tmp_path / "d.json").mkdir()
    assert len(cdi_reader.load([tmp_path]).problems) == 3
    text = f"{tmp_path}/README: Not a directory"
    assert cdi_reader.load([tmp_path / "README"]).problems == (text,)


def test_an_unusable_device_overrides_no_usable_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "s.json").write_text(spec({"name": "G"}))
    broken: Any = {"name": "G", "containerEdits": {}}
    (tmp_path / "b/s.json").write_text(spec(broken))
    directories = [tmp_path / "a", tmp_path / "b"]
    assert cdi_reader.load(directories).devices["G"].file == f"{tmp_path}/a/s.json"
    (tmp_path / "b/s.json").write_text(spec({"name": "G"}))
    assert cdi_reader.load(directories).devices["G"].file == f"{tmp_path}/b/s.json"
    # Of another kind, too.
    (tmp_path / "a/s.json").write_text(spec({"name": "G"}, kind=PLUGIN))
    (tmp_path / "b/s.json").write_text(spec(broken))
    assert cdi_reader.load(directories).devices["G"].kind == PLUGIN


STRANGE_YAML = {
    "an empty whole number": "!!int ''",
    "no truth": "!!bool maybe",
    "sixty to the power of thousands": "!!float 1" + ":1" * 3000,
}


@pytest.mark.parametrize("case", STRANGE_YAML)
def test_a_tag_that_its_scalar_does_not_fit_is_a_problem_of_the_file(
    case: str, tmp_path: Path
) -> None:
    """PyYAML lets an IndexError, KeyError, AttributeError or OverflowError escape."""
    (tmp_path / "strange.yaml").write_text(f"kind: {STRANGE_YAML[case]}\n")
    (tmp_path / "whole.json").write_text(spec({"name": "GPU-1", "containerEdits": {}}))
    specs = cdi_reader.load([tmp_path])
    assert set(specs.devices) == {"GPU-1"}
    (problem,) = specs.problems
    assert "strange.yaml: must be YAML: " in problem


def test_a_file_that_is_not_yaml_has_one_problem_with_its_place(tmp_path: Path) -> None:
    """The same text at each inspection: readiness is logged and written where its text differs."""
    (tmp_path / "broken.yaml").write_text("kind: [\n")
    ((first,), (second,)) = (cdi_reader.load([tmp_path]).problems for _ in range(2))
    assert first == second
    assert "must be YAML: while parsing a flow node" in first and "line 2, column 1" in first


def _doubling(aliases: int) -> str:
    """YAML whose last line expands to two to that power."""
    lines = [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, aliases + 1)]
    return "\n".join(["a0: &a0 [x]", *lines])


def test_aliases_stand_for_no_more_than_a_file_may_hold(tmp_path: Path) -> None:
    head = f"cdiVersion: 0.5.0\nkind: {names.CDI_KIND}\n"
    (tmp_path / "many.yaml").write_text(f"{head}{_doubling(60)}\ndevices: [{{name: *a60}}]\n")
    (tmp_path / "ring.yaml").write_text(f"{head}devices: &d [{{name: *d}}]\n")
    (tmp_path / "some.yaml").write_text(f"{head}{_doubling(9)}\ndevices: [{{name: *a9}}]\n")
    many, ring, some = cdi_reader.load([tmp_path]).problems
    assert "many.yaml: too long: must be at most 4194304 characters" in many
    assert "ring.yaml: too long: must be at most 4194304 characters" in ring
    assert "devices[0].name: invalid value [[[[" in some
    assert len(some) < 500, "a problem ends up in the events of pods"


def test_a_reader_looks_at_what_has_changed_alone(tmp_path: Path) -> None:
    host = tmp_path / "host"
    for place in ("dev/nvidiactl", "dev/nvidia-uvm", "dev/host0", LIBCUDA[1:]):
        (host / place).parent.mkdir(parents=True, exist_ok=True)
        (host / place).symlink_to("/dev/null")
    file = tmp_path / "nvidia.yaml"
    file.write_text(CTK)

    def status(path: str) -> os.stat_result:
        return os.stat(f"{host}{path}")

    reader = Reader([tmp_path, tmp_path / "absent"], status=status)
    first = reader.load()
    assert first == cdi_reader.load([tmp_path], status=status)
    assert first.devices["GPU-1"].problem is None
    assert reader.load() is first
    (tmp_path / "notes.txt").write_text("none of ours")
    assert reader.load() is first
    for place, problem in (("dev/host0", "/dev/host0: No such"), (LIBCUDA[1:], LIBCUDA)):
        (host / place).unlink()
        assert problem in str(reader.load().devices["GPU-1"].problem)
        (host / place).symlink_to("/dev/zero")
        assert reader.load().devices["GPU-1"].problem is None
    assert reader.load().devices["GPU-1"].own.devices[0].minor == 5, "the host's number"
    file.write_text(CTK.replace("GPU-1", "GPU-2"))
    assert set(reader.load().devices) == {"GPU-2", "all"}
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent" / "more.json").write_text(spec({"name": "GPU-3"}))
    assert set(reader.load().devices) == {"GPU-2", "GPU-3", "all"}
    (tmp_path / "dangling.json").symlink_to("nowhere")
    assert "dangling.json" in reader.load().problems[0]
    assert reader.load() == reader.load()
    file.unlink()
    assert set(reader.load().devices) == {"GPU-3"}


def test_without_descriptors_no_spec_is_missing(tmp_path: Path) -> None:
    (tmp_path / "nvidia.json").write_text(spec({"name": "G"}))
    reader = Reader([tmp_path])
    for look in (reader.load, lambda: cdi_vendor.by_name([tmp_path], ["vendor.com/gpu=0"])):
        with no_descriptors(), pytest.raises(Refused, match="no file descriptors") as raised:
            look()
        assert is_shortage(raised.value)
    assert not reader.load().problems
