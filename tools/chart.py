"""`python -m tools.chart`: renders the chart with default values into manifests/install.yaml, and
writes the chart's files/dialects.yaml from gpuslice/contract/dialects.py.

install.yaml is not committed. `render` renders the chart with other values. Both need Helm, which
is built once (tools.kubernetes).
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import yaml

from gpuslice.contract import names
from gpuslice.contract.dialects import DIALECTS, MODES, Dialect
from tools import kubernetes
from tools.building import ProgramsError

CHART: Final = Path(__file__).resolve().parents[1] / "manifests/chart"
INSTALL: Final = CHART.parent / "install.yaml"
NAMESPACE: Final = names.NAMESPACE
DIALECTS_FILE: Final = CHART / "files/dialects.yaml"

_HEADER: Final = """\
# Rendered from the chart, with its default values, by `python -m tools.chart`. Change the tag of
# kube-scheduler to the cluster's version. The Device CRD is in chart/crds.
"""
_DIALECTS_HEADER: Final = """\
# Rendered from gpuslice/contract/dialects.py by `python -m tools.chart`.
"""
_UNUSED: Final = frozenset({"node_resources", "environment"})
"""Fields of Dialect that no template of the chart uses."""


class ChartError(RuntimeError):
    """The chart refuses the values. The text is Helm's error."""


def template(*options: str) -> list[str]:
    """Return the command that renders the chart. Raise ProgramsError without Helm."""
    named = [f"--namespace={NAMESPACE}", f"--kube-version={kubernetes.VERSION}"]
    return [str(kubernetes.ensure_helm()), "template", "gpuslice", str(CHART), *named, *options]


def render(*options: str) -> str:
    """Return the rendered objects as YAML. Raise ChartError, or ProgramsError without Helm."""
    done = subprocess.run(template(*options), text=True, capture_output=True)
    if done.returncode != 0:
        raise ChartError(done.stderr.strip())
    return done.stdout


def install() -> str:
    """Return the text of install.yaml."""
    return _HEADER + render("--set=namespace.create=true", "--no-hooks")


def dialects(given: Sequence[Dialect] = DIALECTS) -> str:
    """Return the text of files/dialects.yaml, which the templates read."""
    earlier = {new: old for old, new in names.DEPRECATED_RESOURCES.items()}
    others = (*names.RESOURCES_WHOLE, *names.RESOURCES_KOORDINATOR_ONLY)
    document = {
        "dialects": [_keys(each) for each in given],
        "modes": [*MODES],
        "ofOtherComponents": [[each, earlier.get(each, each)] for each in others],
    }
    return _DIALECTS_HEADER + yaml.safe_dump(document, sort_keys=False)


def _keys(dialect: Dialect) -> dict[str, object]:
    camel = {
        re.sub("_(.)", lambda found: found[1].upper(), key): value
        for key, value in asdict(dialect).items()
        if key not in _UNUSED
    }
    prefix, suffixes = dialect.container_annotation
    renamed = names.DEPRECATED_RESOURCES.items()
    lists = {
        key: list(value) if isinstance(value, tuple) else value for key, value in camel.items()
    }
    return {
        **lists,
        "counted": [" ".join(each) for each in dialect.counted],
        "containerAnnotation": {"prefix": prefix, "suffixes": list(suffixes)},
        "deprecatedResources": [old for old, new in renamed if new in dialect.resources],
    }


def main() -> int:
    try:
        DIALECTS_FILE.write_text(dialects())
        INSTALL.write_text(install())
    except (ChartError, ProgramsError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
