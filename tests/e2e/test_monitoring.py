"""The chart's PodMonitor, alerts and dashboard, with a real Prometheus on a whole cluster.

Prometheus scrapes the pods that the PodMonitor selects. Their addresses are written into its
configuration, as Prometheus Operator would find them. The test fails if a panel has no data.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from gpuslice.contract import names
from tests.e2e import prometheus
from tests.e2e.prometheus import Json, Prometheus
from tests.e2e.whole import Whole
from tests.support import until
from tools import chart, dashboard

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3000)]

_KINDS: Final = ("podMonitor", "prometheusRule", "dashboard")
_ON: Final = [f"--set=monitoring.{kind}.enabled=true" for kind in _KINDS]
_OFTEN: Final = "--set=monitoring.podMonitor.interval=3s"
"""A scrape may take as long. If the machine stalls for longer, the series end for a while."""
_SYSTEM: Final = f"--namespace={names.NAMESPACE}"
_RANGE: Final = "20s"
"""Stands for Grafana's $__rate_interval, which is four intervals or more."""
_LOAD: Final = "cuda-probe; while true; do cuda-load 60 10000; done"
_REFUSED: Final = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "refused"},
    "spec": {
        "schedulerName": names.SCHEDULER_NAME,
        "containers": [
            {
                "name": "main",
                "image": "busybox",
                "imagePullPolicy": "IfNotPresent",
                "securityContext": {"privileged": True},
                "resources": {"limits": {names.RESOURCE_GPU: 10}},
            }
        ],
    },
}
_METRIC: Final = re.compile(r"\b(gpuslice_\w+|up)\b(?:\{([^}]*)\})?")
_JOB: Final = f"{names.NAMESPACE}/gpuslice"


@pytest.fixture(scope="module")
def monitored(whole: Whole) -> Whole:
    """The cluster with the operator's definitions, the chart's objects, and pods that work."""
    for path in prometheus.definitions():
        whole.kubectl("apply", "--server-side", "-f", str(path))
        whole.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(path))
    whole.install(*_ON, _OFTEN)
    whole.run_pod("thirty", {names.RESOURCE_GPU: 30}, command=_LOAD)
    whole.run_pod("seventy", {names.RESOURCE_GPU: 70}, command=_LOAD)
    return whole


def test_the_api_server_accepts_the_objects_by_the_operators_definitions(monitored: Whole) -> None:
    everything = (*_ON, "--set=agent.http.address=0.0.0.0", "--no-hooks")
    rendered = [each for each in yaml.safe_load_all(chart.render(*everything)) if each]
    ours = [each for each in rendered if each["apiVersion"].startswith("monitoring.coreos.com/")]
    assert {each["kind"] for each in ours} == {"PodMonitor", "PrometheusRule"}
    dry = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")

    def accepts(item: Json) -> bool:
        return monitored.try_kubectl(*dry, "-f", "-", given=json.dumps(item)).returncode == 0

    for each in ours:
        assert accepts(each), each["kind"]
        unknown = {**each, "spec": {**each["spec"], "unknown": 1}}
        assert not accepts(unknown), "the definition knows every field"


@pytest.fixture(scope="module")
def scraping(monitored: Whole, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    scraped = [*_scrape_configs(monitored)]
    rule = json.loads(monitored.kubectl("get", "prometheusrule/gpuslice", _SYSTEM, "-o=json"))
    directory: Path = tmp_path_factory.mktemp("prometheus")
    with Prometheus(directory, scraped, rule["spec"]["groups"]) as started:
        yield started


def _scrape_configs(whole: Whole) -> Iterator[Json]:
    """Yield what the operator writes for the PodMonitor, with the pods' addresses."""
    spec = json.loads(whole.kubectl("get", "podmonitor/gpuslice", _SYSTEM, "-o=json"))["spec"]
    (expression,) = spec["selector"]["matchExpressions"]
    selector = f"{expression['key']} in ({','.join(expression['values'])})"
    pods = json.loads(whole.kubectl("get", "pods", _SYSTEM, f"-l={selector}", "-o=json"))["items"]
    for index, endpoint in enumerate(spec["podMetricsEndpoints"]):
        (relabeling,) = endpoint["relabelings"]
        assert relabeling["sourceLabels"] == ["__meta_kubernetes_pod_node_name"]
        static = [
            {
                "targets": [f"{pod['status']['podIP']}:{port['containerPort']}"],
                "labels": {
                    "job": _JOB,
                    "namespace": names.NAMESPACE,
                    "pod": pod["metadata"]["name"],
                    "container": container["name"],
                    relabeling["targetLabel"]: pod["spec"]["nodeName"],
                },
            }
            for pod in pods
            for container in pod["spec"]["containers"]
            for port in container.get("ports", ())
            if port["name"] == endpoint["port"]
        ]
        yield {
            "job_name": f"podMonitor/{_JOB}/{index}",
            "scrape_interval": endpoint["interval"],
            "scrape_timeout": endpoint["interval"],
            "metrics_path": endpoint["path"],
            "scheme": endpoint.get("scheme", "http"),
            "honor_labels": endpoint.get("honorLabels", False),
            "tls_config": {
                "insecure_skip_verify": "tlsConfig" in endpoint
                and endpoint["tlsConfig"]["insecureSkipVerify"]
            },
            "static_configs": static,
        }


def test_every_program_is_scraped(scraping: Prometheus) -> None:
    def healthy() -> set[str]:
        up = (each["labels"] for each in scraping.targets() if each["health"] == "up")
        return {each["container"] for each in up}

    wanted = {"agent", "extender", "kube-scheduler"}
    until(lambda: healthy() == wanted, "all targets are up")
    assert len(scraping.targets()) == len(wanted)


def test_every_panel_has_data(monitored: Whole, scraping: Prometheus) -> None:
    """A pod that the agent refuses gives the panel of refusals its data."""
    monitored.kubectl("create", "-f", "-", given=json.dumps(_REFUSED))
    expressions = [each for panel in dashboard.panels() for each in panel.targets]
    missing = {each: _grafanas(each) for each in expressions}
    assert len(missing) > 20

    def is_complete() -> bool:
        """A rate has data for a while only, so an expression counts once it has had some."""
        for each in [each for each, query in missing.items() if scraping.query(query)]:
            del missing[each]
        return not missing

    with contextlib.suppress(AssertionError):
        until(is_complete, "every panel has data")
    assert list(missing) == []
    for query in dashboard.VARIABLES.values():
        metric = query.removeprefix("label_values(").rpartition(",")[0]
        assert scraping.query(_grafanas(metric)), query


def _grafanas(expression: str) -> str:
    """Return the expression with Grafana's variables replaced, with all values chosen."""
    replaced = expression.replace(dashboard.RATE_INTERVAL, _RANGE)
    return re.sub(r'"\$\w+"', '".*"', replaced)


def test_every_alert_is_of_series_that_exist(scraping: Prometheus) -> None:
    until(lambda: all(rule["health"] != "unknown" for rule in scraping.rules()), "all ran")
    for rule in scraping.rules():
        assert rule["health"] == "ok", rule
        found = _METRIC.findall(rule["query"])
        assert found, rule["query"]
        for name, matchers in found:
            labels = re.findall(r"(\w+)(?:=~|!=|=)", matchers)
            present = ",".join(f'{label}!=""' for label in labels)
            assert scraping.query(f"{name}{{{present}}}"), f"{rule['name']}: {name} {labels}"
    firing = {rule["name"] for rule in scraping.rules() if rule["state"] == "firing"}
    assert firing <= {"GPUSliceRequestsFail"}, "a busy machine may answer late, else all is well"


def test_a_containers_series_have_its_labels_and_figures(
    monitored: Whole, scraping: Prometheus
) -> None:
    uuid = monitored.gpu("seventy", "uuid")
    labels = f'{{namespace="default",pod="seventy",container="main",uuid="{uuid}",node="gpuslice"}}'

    def mib(name: str) -> int:
        ((_, value),) = scraping.query(f"gpuslice_container_gpu_memory_{name}_bytes{labels}")
        return round(value) >> 20

    assert mib("limit") == int(monitored.gpu("seventy", "memory.total"))
    until(lambda: mib("used") == int(monitored.gpu("seventy", "memory.used")), "the use agrees")
    monitored.inside("seventy", "cuda-probe")
    refused = f"gpuslice_container_gpu_refused_allocations_total{labels} > 0"
    until(lambda: scraping.query(refused), "the refused allocation is counted")
