"""Reads manifests/images/images.toml, which lists the content of each image."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
FILE: Final = ROOT / "manifests" / "images" / "images.toml"


@dataclass(frozen=True, slots=True)
class Recipe:
    """One image. libraries: paths in the image by path in the wheel. programs: the same by name."""

    name: str
    title: str
    description: str
    user: str
    entrypoint: Sequence[str]
    packages: Sequence[str]
    requirements: Sequence[str]
    libraries: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Table:
    debian: Sequence[str]
    """Names of Debian packages, without their dependencies."""
    home: str
    """The path of the virtual environment in an image."""
    path: str
    """The value of the variable PATH in an image."""
    recipes: Mapping[str, Recipe]


@cache
def table() -> Table:
    read = tomllib.loads(FILE.read_text())
    recipes = {name: Recipe(**read[name]) for name in ("agent", "scheduler")}
    python = read["python"]
    return Table(read["debian"]["packages"], python["home"], python["path"], recipes)


@cache
def project() -> Mapping[str, Any]:
    """Return the table `project` of pyproject.toml."""
    found: Mapping[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def requirements(recipe: Recipe) -> list[str]:
    """Return the image's requirements, with the versions of pyproject.toml."""
    named = {re.split("[<>=]", each)[0]: each for each in project()["dependencies"]}
    return [named[name] for name in recipe.requirements]
