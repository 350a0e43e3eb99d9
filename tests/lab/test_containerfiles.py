"""The Containerfiles agree with the table of the images."""

from __future__ import annotations

import json
import re

import pytest

from tests.support import ROOT
from tools.images.nvidia_ctk import NVIDIA_CTK, PROGRAMS
from tools.images.table import Recipe, project, requirements, table

_PRODUCT = {"gpuslice", "nri_plugin", "scheduler", "shim"}
_RECIPES = pytest.mark.parametrize("recipe", table().recipes.values(), ids=table().recipes)


def _containerfile(recipe: Recipe) -> tuple[str, str]:
    """The stages that build, and the one that is the image."""
    short = recipe.name.removeprefix("gpuslice-")
    text = (ROOT / "manifests" / "images" / f"{short}.Containerfile").read_text()
    building, _, last = text.replace("\\\n", " ").rpartition("\nFROM ")
    return building, last


@_RECIPES
def test_the_containerfile_matches_the_table_of_images(recipe: Recipe) -> None:
    building, last = _containerfile(recipe)
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
    for name, value in {
        "title": recipe.title,
        "version": project()["version"],
        "licenses": project()["license"],
    }.items():
        assert f'org.opencontainers.image.{name}="{value}"' in last
    for inside, path in recipe.libraries.items():
        assert re.search(rf"mv {re.escape(inside)} {path} +&& ln -s {path} {inside}\b", building)
    for name, path in recipe.programs.items():
        assert f"COPY --from=programs /go/bin/{name} {path}\n" in last
        assert f"ARG NVIDIA_CTK_VERSION={NVIDIA_CTK.version}\n" in building
        assert f"{{MODULE}}/{PROGRAMS[name].package}@" in building


@_RECIPES
def test_its_containerfile_copies_what_the_wheel_is_built_from(recipe: Recipe) -> None:
    building, _ = _containerfile(recipe)
    copied = {name for line in re.findall(r"COPY (.*) \S+\n", building) for name in line.split()}
    assert copied == {
        *("CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "cmake"),
        *_PRODUCT,
        "manifests/images/slim.sh",
    }
    assert " && sh /src/slim.sh . " in building
