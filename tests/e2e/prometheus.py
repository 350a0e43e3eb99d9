"""Prometheus, and the definitions of Prometheus Operator, from their published Go modules.

Prometheus is built once, into the cache, without its web interface and service discovery: the test
has the addresses of all pods.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from lab import Running, pages
from lab.cluster.controlplane import free_port
from lab.cluster.supervised import Process
from tests.support import until
from tools.building import build, cache_dir, runs

VERSION: Final = "0.313.5"
_PACKAGE: Final = "github.com/prometheus/prometheus/cmd/prometheus"
_OPERATOR: Final = "github.com/prometheus-operator/prometheus-operator"
_OPERATOR_VERSION: Final = "0.85.0"
_KINDS: Final = ("podmonitors", "prometheusrules")
_FREE_BYTES_WANTED: Final = 3_000_000_000

Json = dict[str, Any]


def ensure() -> Path:
    """Return the program. Build it if the cache has none. Raise ProgramsError."""
    final = cache_dir() / "bin" / f"prometheus-{VERSION}"
    if not runs(final / "prometheus"):
        title = f"building Prometheus {VERSION} with Go, once"
        with build(final, title, _FREE_BYTES_WANTED) as under_way:
            under_way.go("mod", "init", "gpuslice.io/lab")
            under_way.go("get", f"{_PACKAGE}@v{VERSION}")
            options = ("-v", "-mod=mod", "-trimpath", "-tags=remove_all_sd", "-ldflags=-s -w")
            under_way.go("build", *options, "-o", str(under_way.into / "prometheus"), _PACKAGE)
    return final / "prometheus"


def definitions() -> Sequence[Path]:
    """Return the operator's CustomResourceDefinitions of the chart's kinds."""
    final = cache_dir() / "bin" / f"prometheus-operator-{_OPERATOR_VERSION}"
    files = [f"monitoring.coreos.com_{kind}.yaml" for kind in _KINDS]
    if not all((final / name).is_file() for name in files):
        with build(final, "fetching Prometheus Operator's definitions", 100_000_000) as under_way:
            module = f"{_OPERATOR}@v{_OPERATOR_VERSION}"
            found = json.loads(under_way.output("mod", "download", "-json", module))
            for name in files:
                source = Path(found["Dir"], "example/prometheus-operator-crd", name)
                shutil.copy(source, under_way.into)
    return [final / name for name in files]


class Prometheus(Running):
    """A context manager: Prometheus scrapes until its exit. scraped: entries of scrape_configs.
    groups: groups of rules."""

    def __init__(self, directory: Path, scraped: Sequence[Json], groups: Sequence[Json]) -> None:
        self._directory = directory
        # JSON is YAML.
        (directory / "rules.yml").write_text(json.dumps({"groups": groups}))
        config = {
            "global": {"evaluation_interval": "1s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": scraped,
        }
        self._config = directory / "prometheus.yml"
        self._config.write_text(json.dumps(config))

    def start(self) -> None:
        program, port = ensure(), free_port()
        self._page = ("127.0.0.1", port)
        options = (
            f"--config.file={self._config}",
            f"--storage.tsdb.path={self._directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        )
        self._process = Process([program, *options], self._directory / "prometheus.log")
        until(self._is_ready, "Prometheus is ready")

    def stop(self) -> None:
        self._process.kill()

    def _is_ready(self) -> bool:
        assert self._process.running, self._process.log_tail()
        try:
            return pages.get(self._page, "/-/ready")[0] == 200
        except OSError:
            return False

    def _ask(self, path: str) -> Any:
        status, text = pages.get(self._page, f"/api/v1/{path}")
        assert status == 200, text
        return json.loads(text)["data"]

    def query(self, expression: str) -> Sequence[tuple[Mapping[str, str], float]]:
        """Return the labels and value of each series, without values that are no number."""
        found = self._ask(f"query?query={quote(expression)}")
        assert found["resultType"] == "vector", expression
        series = [(each["metric"], float(each["value"][1])) for each in found["result"]]
        return [each for each in series if not math.isnan(each[1])]

    def rules(self) -> Sequence[Json]:
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def targets(self) -> Sequence[Json]:
        targets: Sequence[Json] = self._ask("targets")["activeTargets"]
        return targets
