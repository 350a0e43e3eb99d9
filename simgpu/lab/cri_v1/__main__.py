"""Regenerate the messages beside this file (needs grpcio-tools and mypy-protobuf)."""

from __future__ import annotations

import sys
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[2]


def main() -> int:
    code: int = protoc.main(
        [
            "protoc",
            f"--proto_path={_ROOT}",
            f"--plugin=protoc-gen-mypy={Path(sys.executable).parent / 'protoc-gen-mypy'}",
            f"--python_out={_ROOT}",
            f"--mypy_out={_ROOT}",
            str(_HERE / "cri.proto"),
        ]
    )
    return code


if __name__ == "__main__":
    sys.exit(main())
