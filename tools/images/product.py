"""Makes the product's images: their layers, labels and archives.

An archive is cached under a hash of its inputs: the sources, the table of images, this code, and
the versions of everything that is fetched. A second build finds it there, without the network.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from tools import building
from tools.images import debian, oci, wheels
from tools.images.debian import System
from tools.images.nvidia_ctk import NVIDIA_CTK, PROGRAMS
from tools.images.oci import ARCHITECTURES, Image, Layer
from tools.images.table import ROOT, Recipe, project, requirements, table
from tools.progress import step

CONTENTS: Final = "/usr/share/gpuslice/contents.txt"
_LICENSE: Final = "/usr/share/gpuslice/LICENSE"
_LIBRARY_SOURCES: Final = ("CMakeLists.txt", "cmake", "shim")
_RULES: Final = (
    *("LICENSE", "pyproject.toml", "tools/images"),
    *("manifests/images/images.toml", "manifests/images/slim.sh"),
)
_ETC: Final = {
    "/etc/passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\n"
    "gpuslice:x:65532:65532::/:/usr/sbin/nologin\n",
    "/etc/group": "root:x:0:\ngpuslice:x:65532:\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


@dataclass(frozen=True, slots=True)
class Built:
    """A built archive. digest: the manifest's digest. size_bytes: the unpacked layers' size."""

    path: Path
    name: str
    digest: str
    size_bytes: int


def ensure(recipe: Recipe, machine: str = platform.machine(), fetch: bool = False) -> Built:
    """Return the archive, from the cache or built into it. Raise ImageError, ProgramsError."""
    directory = building.cache_dir() / "images"
    name = f"{recipe.name}-{ARCHITECTURES[machine]}"
    system = debian.system(table().debian, machine, fetch)

    def make(packing: Path) -> Path:
        image = _image(recipe, system)
        with step(f"packing {recipe.name}"):
            return oci.pack([image], packing)

    versions = sorted(f"{each.name} {each.version}" for each in metadata.distributions())
    fetched = f"{versions} {system.packages} {NVIDIA_CTK.version}"
    key = _hash(_sources(recipe), f"{machine} {revision(recipe)} {fetched}")
    path = directory / f"{name}-{key}.tar"
    return described(oci.cached(path, f"{name}-*.tar", make))


def described(path: Path) -> Built:
    """Read name, digest and size from the archive."""
    with tarfile.open(path) as tar:

        def read(name: str) -> bytes:
            file = tar.extractfile(name)
            assert file is not None
            return file.read()

        (manifest,) = json.loads(read("index.json"))["manifests"]
        digest = manifest["digest"]
        layers = json.loads(read(f"blobs/{digest.replace(':', '/')}"))["layers"]
    name = manifest["annotations"]["io.containerd.image.name"]
    return Built(path, name, digest, sum(layer["size"] for layer in layers))


def reference(recipe: Recipe) -> str:
    """Return the full name of the image, which a pod may shorten to NAME:VERSION."""
    return f"docker.io/library/{recipe.name}:{project()['version']}"


def _sources(recipe: Recipe) -> list[str]:
    """Return the files and directories of this tree from which the image is made."""
    library = _LIBRARY_SOURCES if recipe.libraries else ()
    return [*recipe.packages, *library, *_RULES]


def _hash(sources: Iterable[str], facts: str) -> str:
    digest = hashlib.sha256(facts.encode())
    for name in sorted(sources):
        for path in sorted([ROOT / name, *(ROOT / name).rglob("*")]):
            if path.is_file() and path.suffix not in {".pyc", ".pyi"}:
                digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def revision(recipe: Recipe) -> str:
    """Return the commit that last changed the image's sources, with "-modified" if files differ
    from it. Return "" if this tree is no git checkout."""
    paths = _sources(recipe)
    commit = _git("log", "-1", "--format=%H", "--", *paths)
    changed = _git("status", "--porcelain", "--", *paths)
    return f"{commit}-modified" if changed else commit


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, text=True, capture_output=True)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _image(recipe: Recipe, system: System) -> Image:
    version = project()["version"]
    labels = {
        "org.opencontainers.image.title": recipe.title,
        "org.opencontainers.image.description": recipe.description,
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.licenses": project()["license"],
        "org.opencontainers.image.revision": revision(recipe),
    }
    required = wheels.installed(requirements(recipe), system, _site(system))
    python_packages = Layer(dated=False)
    python_packages.add_root(required / "site", _site(system))
    return Image(
        name=reference(recipe),
        layers=[
            _base(system),
            python_packages,
            _product(recipe, system, _contents(recipe, system, required)),
        ],
        environ=[f"PATH={table().path}"],
        entrypoint=recipe.entrypoint,
        user=recipe.user,
        labels={name: value for name, value in labels.items() if value},
        architecture=ARCHITECTURES[system.machine],
    )


def _base(system: System) -> Layer:
    """Return the layer of Debian's Python and the virtual environment, equal in both images."""
    layer = Layer(dated=False)
    layer.add_root(system.root)
    home = table().home
    layer.add_bytes(
        f"{home}/pyvenv.cfg", b"home = /usr/bin\ninclude-system-site-packages = false\n"
    )
    for name in ("python", "python3"):
        layer.add_link(f"{home}/bin/{name}", f"/usr/bin/{system.python}")
    for path, text in _ETC.items():
        layer.add_bytes(path, text.encode())
    for name, mode in (("dev", 0o755), ("proc", 0o755), ("sys", 0o755), ("tmp", 0o1777)):
        layer.add_directory(name, mode)
    return layer


def _site(system: System) -> str:
    return f"{table().home}/lib/{system.python}/site-packages"


def _product(recipe: Recipe, system: System, contents: str) -> Layer:
    layer = Layer(dated=False)
    for name, path in recipe.programs.items():
        layer.add_file(PROGRAMS[name].ensure(machine=system.machine), path)
    recipes = table().recipes.values()
    everything = {name for each in recipes for name in _sources(each)}
    place = _site(system)
    site = wheels.own(_hash(everything, str(system.packages)), system, place)
    for name in recipe.packages:
        layer.add_root(site / name, f"{place}/{name}")
    for package in {name.partition("/")[0] for name in recipe.packages if "/" in name}:
        layer.add_file(site / package / "__init__.py", f"{place}/{package}/__init__.py")
        layer.add_root(site / package / "__pycache__", f"{place}/{package}/__pycache__")
    for inside, path in recipe.libraries.items():
        layer.add_file(site / inside, path, 0o755)
        layer.add_link(f"{place}/{inside}", path)
    layer.add_bytes(CONTENTS, contents.encode())
    layer.add_file(ROOT / "LICENSE", _LICENSE, 0o644)
    return layer


def _contents(recipe: Recipe, system: System, required: Path) -> str:
    listed: Sequence[tuple[str, Sequence[str]]] = (
        ("debian", system.packages),
        ("python", [f"gpuslice {project()['version']}"]),
        ("python", (required / "packages.txt").read_text().splitlines()),
        ("go", [f"{name} {PROGRAMS[name].version}" for name in recipe.programs]),
    )
    return "".join(f"{kind} {line}\n" for kind, lines in listed for line in lines)
