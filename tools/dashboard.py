"""`python -m tools.dashboard`: writes the chart's files/dashboard.json, a dashboard for Grafana.

Each line of _TABLE is one panel: its type, unit and title, then expressions with their legends. The
expressions may use two abbreviations, _ABBREVIATED. tests/e2e/test_monitoring.py runs them all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from tools.chart import CHART

FILE: Final = CHART / "files/dashboard.json"
RATE_INTERVAL: Final = "$__rate_interval"
"""Grafana's variable for the range of a rate."""
VARIABLES: Final = {
    "namespace": "label_values(gpuslice_container_gpu_memory_limit_bytes, namespace)",
    "pod": 'label_values(gpuslice_container_gpu_memory_limit_bytes{namespace=~"$namespace"}, pod)',
}
"""The variables that choose containers, and the queries of their values."""

_ABBREVIATED: Final = {
    "$legend": "{{namespace}}/{{pod}} {{container}} {{uuid}}",
    "$of": ",".join(f'{name}=~"${name}"' for name in VARIABLES),
}
_TABLE: Final = """
stat | none | GPUs | max by (state) (gpuslice_scheduler_gpus) | {{state}}
stat | percentunit | GPU memory granted | max(gpuslice_scheduler_gpu_memory_bytes{state="granted"}) / max(gpuslice_scheduler_gpu_memory_bytes{state="total"}) | granted
stat | percentunit | GPU time granted | max(gpuslice_scheduler_gpu_core_granted_ratio) | granted
stat | bytes | Largest share that fits | max(gpuslice_scheduler_largest_free_slice_bytes) | memory
stat | none | Pods waiting for a GPU | max(gpuslice_scheduler_waiting_pods) | pods
stat | none | Containers with a share | sum(gpuslice_containers_with_grant) | containers
timeseries | bytes | GPU memory | sum(gpuslice_gpu_memory_total_bytes) | total | sum(gpuslice_gpu_memory_granted_bytes) | granted | sum(gpuslice_gpu_memory_used_bytes) | used
bargauge | percentunit | Memory of each GPU | gpuslice_gpu_memory_granted_bytes / gpuslice_gpu_memory_total_bytes | {{node}} {{uuid}} granted | gpuslice_gpu_memory_used_bytes / gpuslice_gpu_memory_total_bytes | {{node}} {{uuid}} used
bargauge | percentunit | Memory of each container, of its limit | gpuslice_container_gpu_memory_used_bytes{$of} / gpuslice_container_gpu_memory_limit_bytes{$of} | $legend
timeseries | bytes | Memory of each container | gpuslice_container_gpu_memory_used_bytes{$of} | $legend
timeseries | bytes | Memory that the driver holds beyond the charge | gpuslice_container_gpu_memory_overhead_bytes{$of} | $legend
timeseries | short | Refused allocations, and rises above the limit | increase(gpuslice_container_gpu_refused_allocations_total{$of}[$__rate_interval]) | $legend refused | increase(gpuslice_container_gpu_limit_violations_total{$of}[$__rate_interval]) | $legend above
timeseries | percentunit | GPU time of each container, and its request | gpuslice_container_gpu_share_ratio{window="10s",$of} | $legend | gpuslice_container_gpu_request_ratio{$of} | $legend request
timeseries | s | Time that launches wait, each second | rate(gpuslice_container_gpu_throttled_seconds_total{$of}[$__rate_interval]) | $legend
timeseries | percentunit | Utilization by NVML | gpuslice_container_gpu_nvml_utilization_ratio{$of} | $legend
timeseries | none | Containers without a share or a figure | gpuslice_gpu_unhandled_containers | {{node}} {{uuid}} {{reason}}
timeseries | none | Nodes by reason of exclusion | max by (reason) (gpuslice_scheduler_nodes) | {{reason}}
timeseries | none | Pods in kube-scheduler's queues | sum by (queue) (scheduler_pending_pods) | {{queue}}
timeseries | none | Containers that agents refused, by reason | sum by (reason) (gpuslice_nri_refusals_total) | {{reason}}
timeseries | s | 99 % of answers take less than | histogram_quantile(0.99, sum by (le, verb) (rate(gpuslice_scheduler_verb_duration_seconds_bucket[$__rate_interval]))) | scheduler {{verb}} | histogram_quantile(0.99, sum by (le, request) (rate(gpuslice_nri_request_duration_seconds_bucket[$__rate_interval]))) | agent {{request}}
"""  # noqa: E501
_SIZES: Final = {"stat": (4, 4), "bargauge": (12, 8), "timeseries": (12, 8)}
"""The width and height of each type of panel. The grid has 24 columns."""
_COLUMNS: Final = 24
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


class Panel(NamedTuple):
    """targets: each expression with its legend."""

    type: str
    unit: str
    title: str
    targets: Mapping[str, str]


def panels() -> Iterator[Panel]:
    for line in _TABLE.strip().splitlines():
        for short, text in _ABBREVIATED.items():
            line = line.replace(short, text)
        kind, unit, title, *rest = line.split(" | ")
        yield Panel(kind, unit, title, dict(zip(rest[::2], rest[1::2], strict=True)))


def render() -> str:
    """Return the dashboard as JSON, with a line for each panel."""
    x = y = 0
    lines = []
    for number, panel in enumerate(panels(), 1):
        width, height = _SIZES[panel.type]
        at = {"x": x, "y": y, "w": width, "h": height}
        lines.append(json.dumps(_panel(number, panel, at)))
        x = (x + width) % _COLUMNS
        y += 0 if x else height
    whole = {
        **{"title": "gpuslice", "uid": "gpuslice", "tags": ["gpu"], "schemaVersion": 39},
        **{"editable": True, "refresh": "30s", "time": {"from": "now-1h", "to": "now"}},
        "templating": {"list": [*_variables()]},
    }
    listed = ",\n".join(lines)
    return f'{json.dumps(whole)[:-1]}, "panels": [\n{listed}\n]}}\n'


def _panel(number: int, panel: Panel, at: Mapping[str, int]) -> Mapping[str, Any]:
    largest = {"min": 0, "max": 1} if panel.unit == "percentunit" else {"min": 0}
    return {
        **{"id": number, "type": panel.type, "title": panel.title, "gridPos": at},
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, **largest}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend}
            for index, (expression, legend) in enumerate(panel.targets.items())
        ],
    }


def _variables() -> Iterator[Mapping[str, Any]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus"}
    for name, query in VARIABLES.items():
        yield {
            **{"name": name, "type": "query", "datasource": _SOURCE, "query": query, "refresh": 2},
            **{"includeAll": True, "allValue": ".*", "multi": True},
            "current": {"text": ["All"], "value": ["$__all"]},
        }


if __name__ == "__main__":
    FILE.write_text(render())
