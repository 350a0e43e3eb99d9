"""CDI specs as files on disk, also broken ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpuslice.contract import names
from nri_plugin.claims.store import ClaimStore
from nri_plugin.host import cdi_reader, cdi_vendor
from nri_plugin.host.cdi_reader import Reader
from nri_plugin.policy.device_claims import Prepared
from nri_plugin.policy.model import Device, Edits, Hook, HookStage, Mount, Specs
from nri_plugin.policy.refusals import Refused, is_shortage
from tests.descriptors import no_descriptors
from tests.nri_plugin.cdi.specs import LIBCUDA, gpu, spec, status
from tests.nri_plugin.host_files import put

CTK = """\
cdiVersion: 0.5.0
kind: nvidia.com/gpu
containerEdits:
  env: [NVIDIA_VISIBLE_DEVICES=void]
  deviceNodes: [{path: /dev/nvidiactl}, {path: /dev/nvidia-uvm}]
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
      deviceNodes: [{path: /dev/nvidia0, hostPath: /dev/host0, fileMode: 438}]
  - name: all
    containerEdits:
      deviceNodes:
        - {path: /dev/nvidia0, hostPath: /dev/host0, uid: 0, gid: 44}
        - {path: /dev/nvidia-of-tomorrow, type: c, major: 7, minor: 9}
"""
ONE = spec({"name": "G"})
PLUGIN = names.CDI_KINDS[1]


def test_what_nvidia_ctk_writes(tmp_path: Path) -> None:
    put(tmp_path / "nvidia.yaml", CTK)
    specs = cdi_reader.load([tmp_path], status=status)
    assert specs.problems == ()
    gpu, every = specs.devices["GPU-1"], specs.devices["all"]
    assert set(specs.devices) == {"GPU-1", "all"} and gpu.problem is None
    assert gpu.own == Edits(devices=(Device("/dev/nvidia0", "c", 195, 0, 438),))
    args = ("nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib")
    assert gpu.common == Edits(
        env=(("NVIDIA_VISIBLE_DEVICES", "void"),),
        devices=(Device("/dev/nvidiactl", "c", 195, 255), Device("/dev/nvidia-uvm", "c", 511, 0)),
        mounts=(Mount(LIBCUDA, LIBCUDA, ("ro", "nosuid", "nodev", "bind")),),
        hooks=(Hook(HookStage.CREATE_CONTAINER, "/usr/bin/nvidia-cdi-hook", args, (), 5),),
    )
    assert every.own.devices == (
        Device("/dev/nvidia0", "c", 195, 0, None, 0, 44),
        Device("/dev/nvidia-of-tomorrow", "c", 7, 9),
    )


def test_later_directories_outrank_earlier_ones(tmp_path: Path) -> None:
    low, high = tmp_path / "low", tmp_path / "high"
    for directory in (low, high):
        put(directory / "s.json", ONE)
    for directories in ([low, high], [high, low]):
        found = cdi_reader.load(directories).devices["G"]
        assert found.file == f"{directories[-1]}/s.json"
    # An unusable device overrides no usable device, whatever its kind.
    put(high / "s.json", gpu({}))
    for kind in (names.CDI_KIND, PLUGIN):
        put(low / "s.json", spec({"name": "G"}, kind=kind))
        found = cdi_reader.load([low, high]).devices["G"]
        assert (found.file, found.kind) == (f"{low}/s.json", kind)


def test_the_first_kind_with_the_gpu_counts(tmp_path: Path) -> None:
    """The order of kinds decides, not that of directories, because the device plugin writes into
    the directory that outranks the others."""
    put(tmp_path / "a/s.json", ONE)
    put(tmp_path / "b/p.json", spec({"name": "G"}, {"name": "H"}, kind=PLUGIN))
    put(tmp_path / "b/m.json", spec({"name": "all"}, kind=names.CDI_KIND_MANAGEMENT))
    directories = [tmp_path / "a", tmp_path / "b"]
    found = cdi_reader.load(directories).devices
    kinds = {name: device.kind for name, device in found.items()}
    assert kinds == {"G": names.CDI_KIND, "H": PLUGIN}
    assert found["G"].problem is None, "two kinds are two devices"
    assert cdi_reader.load(directories, [PLUGIN, names.CDI_KIND]).devices["G"].kind == PLUGIN
    # Two descriptions in one directory make the device unusable.
    put(tmp_path / "b/twice.json", spec({"name": "H"}, {"name": "I"}, kind=PLUGIN))
    found = cdi_reader.load(directories).devices
    assert "defines it too" in str(found["H"].problem) and found["I"].problem is None


BROKEN = [
    ("json", "{", "Expecting property name"),
    ("json", "[]", "the spec: invalid type list: must be an object"),
    ("json", spec(cdiVersion="2.0.0"), "cdiVersion: invalid value '2.0.0'"),
    ("json", spec(cdiVersion=None), "cdiVersion: invalid value None: must be a string"),
    ("json", spec(devices={}), "devices: invalid type dict: must be a list"),
    ("json", spec({"name": ""}), "devices[0].name: invalid value ''"),
    ("json", "\xff", "codec can't decode"),
    # PyYAML raises an IndexError, KeyError or OverflowError for these.
    ("yaml", "kind: !!int ''\n", "must be YAML: "),
    ("yaml", "kind: !!bool maybe\n", "must be YAML: "),
    ("yaml", "kind: !!float 1" + ":1" * 3000, "must be YAML: "),
    ("yaml", "kind: [\n", "must be YAML: while parsing a flow node"),
    ("yaml", "kind: [\n", "line 2, column 1"),
]


@pytest.mark.parametrize(("suffix", "text", "problem"), BROKEN, ids=range(len(BROKEN)))
def test_a_broken_file_is_named_and_hurts_no_other(
    suffix: str, text: str, problem: str, tmp_path: Path
) -> None:
    broken = tmp_path / f"broken.{suffix}"
    broken.write_bytes(text.encode("latin-1"))
    put(tmp_path / "good.json", ONE)
    specs = cdi_reader.load([tmp_path])
    assert list(specs.devices) == ["G"]
    (said,) = specs.problems
    assert said.startswith(f"{broken}: ") and problem in said
    # A second reading must give the same text, because the agent logs each change of the text.
    assert cdi_reader.load([tmp_path]).problems == (said,)


def test_files_that_are_no_specs(tmp_path: Path) -> None:
    readable = json.dumps({"cdiVersion": "9", "kind": "x.com/nic"})
    put(tmp_path / "net.json", readable)
    readme = put(tmp_path / "README", "not a spec")
    assert cdi_reader.load([tmp_path, tmp_path / "absent"]) == Specs()
    put(tmp_path / "a.json", readable.ljust(4 << 20))
    put(tmp_path / "b.json", readable.ljust((4 << 20) + 1))
    (tmp_path / "c.json").symlink_to("nowhere")
    (tmp_path / "d.json").mkdir()
    for key in ("bb", "bbb"):  # with its aliases expanded, the first is as long as a spec may be
        put(tmp_path / f"{key}.yaml", f"a: &a {'x' * 1398098}\n{key}: [*a, *a]\n")
    problems = cdi_reader.load([tmp_path]).problems
    assert [Path(each.partition(": ")[0]).stem for each in problems] == ["b", "bbb", "c", "d"]
    assert cdi_reader.load([readme]).problems == (f"{readme}: Not a directory",)


def test_aliases_stand_for_no_more_than_a_file_may_hold(tmp_path: Path) -> None:
    lines = [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 61)]
    for name, doublings, devices in (
        ("many", 60, "[{name: *a60}]"),
        ("ring", 0, "&d [{name: *d}]"),
        ("some", 9, "[{name: *a9}]"),
    ):
        head = f"cdiVersion: 0.5.0\nkind: {names.CDI_KIND}\na0: &a0 [x]\n"
        put(tmp_path / f"{name}.yaml", f"{head}{''.join(lines[:doublings])}devices: {devices}\n")
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
    file = put(tmp_path / "nvidia.yaml", CTK)

    def seen(path: str) -> os.stat_result:
        return os.stat(f"{host}{path}")

    reader = Reader([tmp_path, tmp_path / "absent"], status=seen)
    first = reader.load()
    assert first.devices["GPU-1"].problem is None
    put(tmp_path / "notes.txt", "none of ours")
    ClaimStore(tmp_path / "claims", tmp_path).put(Prepared("uid", "default", "claim", [], []))
    assert reader.load() is first, "each Prepare of a claim writes a spec here"
    for place, problem in (("dev/host0", "/dev/host0: No such"), (LIBCUDA[1:], LIBCUDA)):
        (host / place).unlink()
        assert problem in str(reader.load().devices["GPU-1"].problem)
        (host / place).symlink_to("/dev/zero")
        assert reader.load().devices["GPU-1"].problem is None
    assert reader.load().devices["GPU-1"].own.devices[0].minor == 5, "the host's number"
    file.write_text(CTK.replace("GPU-1", "GPU-2"))
    assert set(reader.load().devices) == {"GPU-2", "all"}
    put(tmp_path / "absent/more.json", spec({"name": "GPU-3"}))
    assert set(reader.load().devices) == {"GPU-2", "GPU-3", "all"}
    (tmp_path / "dangling.json").symlink_to("nowhere")
    assert "dangling.json" in reader.load().problems[0]
    file.unlink()
    assert set(reader.load().devices) == {"GPU-3"}


def test_without_descriptors_no_spec_is_missing(tmp_path: Path) -> None:
    put(tmp_path / "nvidia.json", ONE)
    reader = Reader([tmp_path])
    for look in (reader.load, lambda: cdi_vendor.by_name([tmp_path], ["vendor.com/gpu=0"])):
        with no_descriptors(), pytest.raises(Refused, match="no file descriptors") as raised:
            look()
        assert is_shortage(raised.value)
    assert not reader.load().problems
