"""`python -m tools.chart`: renders manifests/install.yaml from the chart, with its default values.

Others render the chart with other values (`render`). Needs Helm, which is built once (tools.helm).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from contract import names
from tools import helm, kubernetes
from tools.building import ProgramsError

CHART: Final = Path(__file__).resolve().parents[1] / "manifests/chart"
INSTALL: Final = CHART.parent / "install.yaml"
NAMESPACE: Final = names.NAMESPACE

_HEADER: Final = """\
# Rendered from the chart, with its default values, by `python -m tools.chart`. Change the tag of
# kube-scheduler to the cluster's version. The Device CRD is in chart/crds.
"""


class ChartError(RuntimeError):
    """The chart refuses the values; the text is Helm's."""


def template(*options: str) -> list[str]:
    """The command that renders the chart. Raises ProgramsError without Helm."""
    named = [f"--namespace={NAMESPACE}", f"--kube-version={kubernetes.VERSION}"]
    return [str(helm.ensure()), "template", "gpuslice", str(CHART), *named, *options]


def render(*options: str) -> str:
    """The objects, as YAML. Raises ChartError, and ProgramsError without Helm."""
    done = subprocess.run(template(*options), text=True, capture_output=True)
    if done.returncode != 0:
        raise ChartError(done.stderr.strip())
    return done.stdout


def install() -> str:
    """The text of install.yaml."""
    return _HEADER + render("--set=namespace.create=true", "--no-hooks")


def main() -> int:
    try:
        INSTALL.write_text(install())
    except (ChartError, ProgramsError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
