"""Log lines and events about containers, for operators and the pods' authors."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from gpuslice.contract import names
from gpuslice.kube.log_lines import Line
from nri_plugin.containers.parts import Parts
from nri_plugin.policy import checks
from nri_plugin.policy.model import Container, Pod
from nri_plugin.policy.notices import Notice, Notices

_LOG: Final = logging.getLogger(__name__)


def without_gpu(notices: Notices, pod: Pod, container: Container, warning: str) -> None:
    if warning:
        text = f'container "{container.name}": {warning}'
        notices.add(Notice(pod, container.name, names.EVENT_WITHOUT_GPU, text))


def kept_gpu(pod: Pod, container: Container) -> None:
    text = "container without a grant keeps the GPU of another device plugin"
    gpu = checks.given_gpu(container)
    _LOG.warning(Line(text, **pod.log_fields(container.name, container.id), given=gpu))


def cut_capabilities(notices: Notices, pod: Pod, container: Container, cut: Sequence[str]) -> None:
    if not cut:
        return
    listed, what = ",".join(cut), "driver capabilities cut"
    _LOG.info(Line(what, **pod.log_fields(container.name), cut=listed))
    text = (
        f'container "{container.name}": {what}: {listed}: they are not injected, because memory'
        " taken through them is not limited; the operator allows them by --driver-capabilities"
    )
    reason = names.EVENT_CAPABILITIES_CUT
    notices.add(Notice(pod, container.name, reason, text, warning=False))


def not_enforceable(parts: Parts, pod: Pod, container: Container, problem: str) -> None:
    parts.metrics.not_enforceable.inc()
    reason = names.EVENT_LIMIT_NOT_ENFORCEABLE
    text = f'container "{container.name}" starts, but {problem}'
    parts.notices.add(Notice(pod, container.name, reason, text))
    warn(reason, pod, container, problem)


def warn(text: str, pod: Pod, container: Container, problem: str) -> None:
    _LOG.warning(Line(text, **pod.log_fields(container.name, container.id), problem=problem))
