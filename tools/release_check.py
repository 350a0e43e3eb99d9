"""`make release-check`: builds and checks what a release consists of, as far as one machine can.

It checks the workflows, the lock, the changelog, the chart and the distributions, each as a timed
step. The distributions stay in build/release. `--tag vX.Y.Z` requires the versions of that tag.
actionlint is built with Go once. uv fetches twine and pre-commit once, into its own cache.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import yaml

from tools import building, chart, kubernetes, lock
from tools.building import ProgramsError, output
from tools.progress import step

ROOT: Final = Path(__file__).resolve().parents[1]
INTO: Final = ROOT / "build" / "release"
_UV: Final = Path(sys.executable).with_name("uv")
_TWINE: Final = "twine==7.0.0"
_PRE_COMMIT: Final = "pre-commit==4.7.0"
_ACTIONLINT: Final = "github.com/rhysd/actionlint"
_ACTIONLINT_VERSION: Final = "1.7.12"
_FREE_BYTES_WANTED: Final = 500_000_000
_PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
_MACHINES: Final = ("x86_64", "aarch64")
_GLIBC: Final = "manylinux_2_28"
_WITHOUT_WHEELS: Final = "gpustat"
_KUBERNETES: Final = ("1.30.0", kubernetes.VERSION)
"""The oldest and the newest version for which the chart is rendered."""


class CheckError(RuntimeError):
    """Something is not ready for a release. The text says what to change."""


def changelog_problem(text: str, version: str, tag: str | None) -> str:
    """Return what CHANGELOG.md lacks for the version, or "". A release needs the date.

    A version after the newest release, as of commits without a tag, may be under Unreleased.
    """
    if tag not in (None, f"v{version}"):
        return f"tag: invalid value {tag}: must be v{version}, the version of the distributions"
    heads = re.findall(r"^## \[(.+?)\](?: - (\S+))?$", text, re.MULTILINE)
    public = re.split(r"\.?dev|\+|rc|a|b", version)[0]
    if not heads or heads[0][0] not in (public, "Unreleased"):
        return f"CHANGELOG.md: its first section must be [{public}] or [Unreleased]"
    if tag is None:
        return ""
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", dict(heads).get(version, "")):
        return f"CHANGELOG.md: the section [{version}] must exist and have its date, as YYYY-MM-DD"
    return ""


def _run(*command: str | Path, text: str | None = None) -> str:
    return output(command, CheckError, cwd=ROOT, input=text)


def _workflows() -> None:
    final = building.cache_dir() / "bin" / f"actionlint-{_ACTIONLINT_VERSION}"
    program = final / "actionlint"
    if not building.runs(program):
        with building.build(final, "building actionlint, once", _FREE_BYTES_WANTED) as under_way:
            package = f"{_ACTIONLINT}/cmd/actionlint"
            under_way.go("mod", "init", "gpuslice.io/tools")
            under_way.go("get", f"{package}@v{_ACTIONLINT_VERSION}")
            kubernetes.compile_in(under_way, package, "actionlint")
    _run(program)


def _hooks() -> None:
    _run(_UV, "tool", "run", _PRE_COMMIT, "validate-config", ".pre-commit-config.yaml")


def _lock() -> None:
    """The lock has each package for each Python and architecture, with a wheel for it."""
    locked = set(re.findall(r"^\S+==\S+", (ROOT / lock.LOCK).read_text(), re.MULTILINE))
    given = "\n".join(lock.requirements(ROOT))
    wheels = ("--only-binary", ":all:", "--no-binary", _WITHOUT_WHEELS)
    for python in _PYTHONS:
        for machine in _MACHINES:
            target = ("--python-version", python, "--python-platform", f"{machine}-{_GLIBC}")
            form = ("--quiet", "--no-header", "--no-annotate", "--constraint", str(lock.LOCK))
            found = _run(_UV, "pip", "compile", "-", *target, *form, *wheels, text=given).split()
            if missing := sorted(set(found) - locked):
                raise CheckError(f"{lock.LOCK}: lacks {', '.join(missing)}: run make lock")


def _chart() -> None:
    _run(
        kubernetes.ensure_helm(), "lint", "--strict", f"--namespace={chart.NAMESPACE}", chart.CHART
    )
    for version in _KUBERNETES:
        objects = [*yaml.safe_load_all(chart.render(f"--kube-version={version}"))]
        if not any(each and each["kind"] == "DaemonSet" for each in objects):
            raise CheckError(f"chart: renders no DaemonSet for Kubernetes {version}")
    if chart.main() != 0:
        raise CheckError("install.yaml: see above")


def _distributions() -> None:
    """Build the source distribution, and the wheel out of it; check both."""
    shutil.rmtree(INTO, ignore_errors=True)
    building_in = ("--no-build-isolation", "--python", sys.executable)
    _run(_UV, "build", "--quiet", *building_in, "--out-dir", INTO)
    built = [*INTO.glob("*.whl"), *INTO.glob("*.tar.gz")]
    if len(built) != 2:
        raise CheckError(f"{INTO}: must have one wheel and one .tar.gz: {built}")
    _run(_UV, "tool", "run", _TWINE, "check", "--strict", *built)


def _versions(tag: str | None) -> None:
    wheels = [*INTO.glob("*.whl")]
    if not wheels:
        raise CheckError("no wheel, which has the version")
    version = wheels[0].name.split("-")[1]
    described = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    for field in ("version", "appVersion"):
        if tag and described[field] != version:
            found = described[field]
            raise CheckError(f"Chart.yaml: {field}: invalid value {found}: must be {version}")
    if problem := changelog_problem((ROOT / "CHANGELOG.md").read_text(), version, tag):
        raise CheckError(problem)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build and check what a release consists of."""
    parser = argparse.ArgumentParser(prog="python -m tools.release_check", description=main.__doc__)
    parser.add_argument("--tag", metavar="vX.Y.Z", help="the tag of the release")
    tag = parser.parse_args(arguments).tag
    checks: Mapping[str, Callable[[], None]] = {
        "workflows (actionlint)": _workflows,
        "hooks (pre-commit)": _hooks,
        f"lock, for Python {_PYTHONS[0]} to {_PYTHONS[-1]}": _lock,
        "chart (helm lint), install.yaml": _chart,
        "wheel and source distribution (twine)": _distributions,
        "versions and changelog": lambda: _versions(tag),
    }
    failed = 0
    for title, check in checks.items():
        with step(title) as shown:
            try:
                check()
            except (CheckError, ProgramsError, chart.ChartError) as error:
                failed, shown.failed, shown.result = failed + 1, True, str(error)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
