"""The images: their table, Containerfiles and content, and that the product runs in them."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT, distributions, imported, run
from tools.images import product
from tools.images.nvidia_ctk import NVIDIA_CTK, PROGRAMS
from tools.images.oci import Image, Layer, pack
from tools.images.product import CONTENTS, Built
from tools.images.table import Recipe, project, requirements, table

_PRODUCT = {"gpuslice", "nri_plugin", "scheduler", "shim"}
_ONLY_WITH_A_KUBECONFIG = {"kubernetes"}
"""Packages that the images lack: they are large, and only a kubeconfig needs them."""
_MOST_BYTES = {"gpuslice-agent": 150e6, "gpuslice-scheduler": 130e6}
_RECIPES = pytest.mark.parametrize("recipe", table().recipes.values(), ids=table().recipes)


@_RECIPES
def test_an_image_requires_what_its_packages_import(recipe: Recipe) -> None:
    sources = (path for name in recipe.packages for path in (ROOT / name).rglob("*.py"))
    found = set().union(*(imported(path.read_bytes()) for path in sources))
    assert found & _PRODUCT == {name.partition("/")[0] for name in recipe.packages}
    assert distributions(found - _PRODUCT - _ONLY_WITH_A_KUBECONFIG) == set(recipe.requirements)


@_RECIPES
def test_the_containerfile_matches_the_table_of_images(recipe: Recipe) -> None:
    """The Containerfile also copies every file from which the wheel is built."""
    short = recipe.name.removeprefix("gpuslice-")
    text = (ROOT / "manifests" / "images" / f"{short}.Containerfile").read_text()
    building, _, last = text.replace("\\\n", " ").rpartition("\nFROM ")
    (installed,) = re.findall(r"--no-install-recommends ([^&]*) &&", last)
    assert installed.split() == list(table().debian)
    assert re.findall(r'"([\w-]+[<>=][^"]*)"', building) == requirements(recipe)
    (removed,) = re.findall(r"rm -r ([\w/ ]+?) +&&", building)
    ours = {name.partition("/")[0] for name in recipe.packages}
    assert {name for name in removed.split() if "/" not in name} == _PRODUCT - ours
    assert f"USER {recipe.user}\n" in last
    assert f"ENTRYPOINT {json.dumps(recipe.entrypoint)}\n" in last
    assert f"ENV PATH={table().path}\n" in last
    assert f"COPY --from=python {table().home} {table().home}\n" in last
    labels = {"title": recipe.title}
    labels |= {"version": project()["version"], "licenses": project()["license"]}
    for name, value in labels.items():
        assert f'org.opencontainers.image.{name}="{value}"' in last
    for inside, path in recipe.libraries.items():
        assert re.search(rf"mv {re.escape(inside)} {path} +&& ln -s {path} {inside}\b", building)
    for name, path in recipe.programs.items():
        assert f"COPY --from=programs /go/bin/{name} {path}\n" in last
        assert f"ARG NVIDIA_CTK_VERSION={NVIDIA_CTK.version}\n" in building
        assert f"{{MODULE}}/{PROGRAMS[name].package}@" in building
    copied = {name for line in re.findall(r"COPY (.*) \S+\n", building) for name in line.split()}
    sources = {"CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "cmake"}
    assert copied == {*sources, *_PRODUCT, "manifests/images/slim.sh"}
    assert " && sh /src/slim.sh . " in building


def _read(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    assert file is not None
    return file.read()


def _blob(tar: tarfile.TarFile, descriptor: Mapping[str, Any]) -> bytes:
    kind, digest = descriptor["digest"].split(":")
    content = _read(tar, f"blobs/{kind}/{digest}")
    assert hashlib.new(kind, content).hexdigest() == digest
    assert len(content) == descriptor["size"]
    return content


def test_an_archive_is_an_oci_layout_with_its_names(tmp_path: Path) -> None:
    tree, name = tmp_path / "tree", "docker.io/library/example:1.2"
    tree.mkdir()
    (tree / "program").write_bytes(b"program")
    layer = Layer(dated=False)
    layer.add_root(tree, "/usr/bin")
    labels = {"b": "2", "a": "1"}
    example = Image(name, [layer], entrypoint=["program"], user="65532:65532", labels=labels)
    with tarfile.open(pack([example], tmp_path)) as tar:
        assert json.loads(_read(tar, "oci-layout")) == {"imageLayoutVersion": "1.0.0"}
        (described,) = json.loads(_read(tar, "index.json"))["manifests"]
        assert described["annotations"] == {
            "io.containerd.image.name": name,
            "org.opencontainers.image.ref.name": "1.2",
        }
        manifest = json.loads(_blob(tar, described))
        config = json.loads(_blob(tar, manifest["config"]))
        assert config["config"] == {
            "User": "65532:65532",
            "Entrypoint": ["program"],
            "Labels": labels,
        }
        assert config["rootfs"]["diff_ids"] == [each["digest"] for each in manifest["layers"]]
        for each in manifest["layers"]:
            _blob(tar, each)


def _unpack(archive: Path, root: Path) -> None:
    with tarfile.open(archive) as tar:
        (described,) = json.loads(_read(tar, "index.json"))["manifests"]
        for layer in json.loads(_blob(tar, described))["layers"]:
            path = f"blobs/{layer['digest'].replace(':', '/')}"
            with tarfile.open(fileobj=tar.extractfile(path)) as content:
                content.extractall(root, filter="fully_trusted")


@pytest.fixture(scope="module", params=[*table().recipes.values()], ids=[*table().recipes])
def unpacked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Recipe, Built, Path]]:
    """Unpack an image's files into a directory. The image is built unless the cache has it."""
    recipe: Recipe = request.param
    built = product.ensure(recipe)
    root = tmp_path_factory.mktemp(recipe.name)
    _unpack(built.path, root)
    yield recipe, built, root
    shutil.rmtree(root)


def _run(root: Path, *command: str, **environ: str) -> str:
    done = run("/usr/sbin/chroot", root, *command, env={"PATH": table().path, **environ})
    assert done.returncode == 0, done.stderr
    return done.stdout


_IMPORT_ALL = """
import importlib, os, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for each in pkgutil.walk_packages(package.__path__, name + "."):
        if not each.name.endswith(("__main__", ".libvgpu", ".forwarder")):
            importlib.import_module(each.name)
compiled = [getattr(each, "__cached__", None) for each in sys.modules.values()]
missing = [path for path in compiled if path and not os.path.exists(path)]
assert not [path for path in missing if "sitecustomize" not in path], missing
"""


def _modules(recipe: Recipe) -> list[str]:
    return [name.replace("/", ".") for name in recipe.packages]


@pytest.mark.node
def test_an_image_runs(unpacked: tuple[Recipe, Built, Path]) -> None:
    """Every module of the product has compiled code and can be imported. The programs start."""
    recipe, built, root = unpacked
    # LD_BIND_NOW makes the loader resolve every function of a library, called or not.
    _run(root, "python", "-B", "-c", _IMPORT_ALL, *_modules(recipe), LD_BIND_NOW="1")
    assert "sage:" in _run(root, *recipe.entrypoint, "--help")
    for path in recipe.programs.values():
        assert _run(root, path, "--version").rstrip().endswith(f"v{NVIDIA_CTK.version}")
    contents = (root / CONTENTS[1:]).read_text().splitlines()
    assert f"python gpuslice {project()['version']}" in contents
    assert [line for line in contents if line.startswith("debian libc6 ")]
    assert built.size_bytes < _MOST_BYTES[recipe.name]
    setuid = [path for path in root.rglob("*") if path.lstat().st_mode & 0o6000]
    assert setuid == []


@pytest.mark.node
def test_the_agents_image_has_its_library_and_a_hook_that_runs_without_glibc(
    unpacked: tuple[Recipe, Built, Path], tmp_path: Path
) -> None:
    recipe, _, root = unpacked
    assert (root / table().home[1:] / "lib").is_dir()
    for path in recipe.libraries.values():
        assert (root / path[1:]).read_bytes().startswith(b"\x7fELF")
    if recipe.libraries:
        program = "from shim import library; print(library.find().resolve())"
        assert _run(root, "python", "-c", program) == "/opt/gpuslice/libvgpu.so\n"
        shutil.copy(root / recipe.programs["nvidia-cdi-hook"][1:], tmp_path)
        assert "version" in _run(tmp_path, "/nvidia-cdi-hook", "--version")


@pytest.mark.node
@pytest.mark.timeout(1200)
def test_a_build_from_scratch_has_the_same_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only NVIDIA's programs come from the cache, because they take long to build."""
    recipes = table().recipes.values()
    first = [product.ensure(recipe).digest for recipe in recipes]
    (tmp_path / "bin").mkdir()
    for place in {each.ensure().parent for each in PROGRAMS.values()}:
        (tmp_path / "bin" / place.name).symlink_to(place)
    monkeypatch.setenv("GPUSLICE_CACHE", str(tmp_path))
    assert [product.ensure(recipe).digest for recipe in recipes] == first


@pytest.mark.node
@pytest.mark.timeout(1200)
@_RECIPES
def test_an_image_for_aarch64_runs(recipe: Recipe, tmp_path: Path) -> None:
    emulator = shutil.which("qemu-aarch64-static")
    if emulator is None:
        pytest.skip("qemu-aarch64-static is not installed (make setup installs it)")
    _unpack(product.ensure(recipe, "aarch64").path, tmp_path)
    shutil.copy(emulator, tmp_path / "emulator")
    python = f"{table().home}/bin/python"
    _run(tmp_path, "/emulator", python, "-B", "-c", _IMPORT_ALL, *_modules(recipe))
    for path in recipe.programs.values():
        assert "version" in _run(tmp_path, "/emulator", path, "--version")
    for path in recipe.libraries.values():
        header = (tmp_path / path[1:]).read_bytes()[:20]
        assert header[18:] == b"\xb7\0", "the ELF header's machine is EM_AARCH64"
