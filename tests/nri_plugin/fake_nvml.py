"""Stands for NVML's process: `python fake_nvml.py ANSWERS`, a JSON object or a file of one.

    gpus         a list of GPUs: the fields of model.Gpu, "recovery", and "xids" (pairs of UUID and
                 number); or only "error"; or "silent", for a GPU that does not answer
    driver, links, head_xids, has_limits   values of the answer's first line
    limits       a file that records each request to set limits; by directory it has what the driver
                 answers: a pair of limits, or an error. Other directories get what was asked
    memory, utilization   by UUID, as gpu/processes.py has them
    exit         the process ends with this text
    hang         the process does not answer

The file is read again for each query.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

PROGRAM = (sys.executable, str(Path(__file__)))


def _say(number: str, **answer: Any) -> None:
    sys.stdout.write(json.dumps({"request": int(number), **answer}) + "\n")
    sys.stdout.flush()


def _gpus(number: str, answers: Any, gpus: list[dict[str, Any]]) -> None:
    for index, gpu in enumerate(gpus):
        if gpu.pop("silent", False):
            continue
        xids = gpu.pop("xids", [])
        body = gpu if "error" in gpu else {"gpu": {"index": index, **gpu}}
        _say(number, index=index, xids=xids, **body)


def _processes(number: str, answers: Any, gpus: list[dict[str, Any]]) -> None:
    memory, utilization = answers.get("memory", {}), answers.get("utilization", {})
    for index, gpu in enumerate(gpus):
        if gpu.pop("silent", False):
            continue
        uuid = gpu.get("uuid")
        of_gpu = {"memory": memory.get(uuid, {}), "utilization": utilization.get(uuid, {})}
        _say(number, index=index, **({"uuid": uuid, **of_gpu} if uuid else gpu))


def _limits(number: str, answers: Any, asked: dict[str, Any]) -> None:
    file = Path(answers["limits"])
    known = json.loads(file.read_text())
    known.setdefault("asked", []).extend([uuid, groups] for uuid, groups in asked.values())
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps(known))
    beside.rename(file)  # before the answer, because a test reads and replaces it afterwards
    for index, (_, groups) in asked.items():
        limits = {group: known.get(group, [most, most]) for group, most in groups.items()}
        _say(number, index=int(index), limits=limits)


def main() -> None:
    for line in sys.stdin:
        number, kind, *rest = line.split(maxsplit=2)
        given = sys.argv[1]
        answers = json.loads(given if given.startswith("{") else Path(given).read_text())
        if "exit" in answers:
            sys.exit(answers["exit"])
        if answers.get("hang"):
            time.sleep(3600)
        gpus = answers.get("gpus") or [{"uuid": uuid} for uuid in answers.get("memory", ())]
        count = len(gpus)
        head = {
            "driver": answers.get("driver", ""),
            "links": answers.get("links", [""] * count),
            "limits": answers.get("has_limits", False),
        }
        _say(number, count=count, xids=answers.get("head_xids", []), **head)
        if kind == "limits":
            _limits(number, answers, json.loads(rest[0]))
        elif kind == "links":
            _say(number, index=-1, links=answers["measured_links"])
        else:
            (_gpus if kind == "gpus" else _processes)(number, answers, gpus)


if __name__ == "__main__":
    main()
