"""`make lint`: runs each checker as a timed step, and shows its output only if it finds something.
Titles of checkers as arguments select these, as the hooks of pre-commit do.

Three checks are our own: words that do not name the component (CONTRIBUTING, "Words"), documents
with too long lines, a too long README or too many guides, and functions of the product above 60
lines (functions.py). Type stubs of protobuf messages are generated before mypy, which reads them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tools import building, functions
from tools.progress import step

_ROOT: Final = Path(__file__).resolve().parents[1]
_BIN: Final = Path(sys.executable).parent

_MYPY_CACHE: Final = building.cache_dir() / "mypy" / _ROOT.as_posix().strip("/").replace("/", "-")
_STUBS: Final = "type stubs of messages"
_SCRIPTS: Final = "mypy --strict of the chart"
_CHECKS: Final = {
    _STUBS: ["python", "-m", "grpc_tools.protoc", "-I.", "--mypy_out=quiet:."],
    "ruff": ["ruff", "check", "."],
    "ruff format": ["ruff", "format", "--check", "."],
    # Each checkout needs its own cache, or mypy confuses the versions. `make clean` keeps it.
    "mypy --strict": ["mypy", f"--cache-dir={_MYPY_CACHE}"],
    _SCRIPTS: ["mypy", f"--cache-dir={_MYPY_CACHE}"],
    "import contracts": ["lint-imports"],
    "clang-format": ["clang-format", "--dry-run", "-Werror"],
}

_MAX_COLUMNS: Final = 120
_MAX_README_LINES: Final = 120
_MAX_GUIDES: Final = 20
_GUIDE: Final = re.compile(r"docs/[^/]+\.md")
_VAGUE: Final = re.compile(
    r"(?<![a-z])(who|whom|whoever|nobody|somebody|anybody|everybody|everyone|anyone|someone)"
    r"(?![a-z])",
    re.IGNORECASE,
)
_QUOTED: Final = "nobody:x:65534"
"""A line of /etc/passwd, where the word is a user's name."""
_TEXTS: Final = (
    *("*.py", "*.c", "*.h", "*.S", "*.def", "*.go", "*.sh", "*.tpl", "*.proto", "*.map", "*.in"),
    *("*.cmake", "*.md", "*.yaml", "*.toml", "*.txt", "*Makefile", "*.Containerfile"),
    *(".ci/run", ".importlinter"),
)
_RECORDS: Final = ("bench/results/", "traces/data/", "tools/lint.py", "tests/lab/test_lint.py")
"""Paths that are not checked: recorded output, this list of words, and its test."""

_FILES: Final = {
    _STUBS: ["*.proto"],
    _SCRIPTS: ["manifests/chart/files/*.py"],
    "clang-format": ["*.c", "*.h"],
}
"""The patterns of the files whose names are a check's arguments."""


def _tracked(patterns: Sequence[str]) -> list[str]:
    tracked = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    listed = subprocess.run(tracked, cwd=_ROOT, text=True, capture_output=True, check=True)
    return [name for name in listed.stdout.split() if (_ROOT / name).exists()]


def findings(name: str, text: str) -> Iterator[str]:
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        vague = _VAGUE.search(line)
        if vague and _QUOTED not in line:
            yield f"{name}:{number}: {vague[0]}: name the component instead\n"
        in_code ^= line.startswith("```")
        # Lines of code and rows of tables cannot be wrapped.
        fixed = in_code or line.startswith("|")
        if name.endswith(".md") and len(line) > _MAX_COLUMNS and not fixed:
            yield f"{name}:{number}: {len(line)} columns, at most {_MAX_COLUMNS}\n"


def excess(names: Sequence[str], readme: str) -> Iterator[str]:
    """Report a README that is too long, and too many guides among the files' names."""
    if (lines := len(readme.splitlines())) > _MAX_README_LINES:
        yield f"README.md: {lines} lines, at most {_MAX_README_LINES}\n"
    if (guides := sum(bool(_GUIDE.fullmatch(name)) for name in names)) > _MAX_GUIDES:
        yield f"docs: {guides} guides, at most {_MAX_GUIDES}\n"


def _documents() -> str:
    return "".join(excess(_tracked(["*.md"]), (_ROOT / "README.md").read_text()))


def _words() -> str:
    names = [name for name in _tracked(_TEXTS) if not name.startswith(_RECORDS)]
    return "".join(each for name in names for each in findings(name, (_ROOT / name).read_text()))


def _functions() -> str:
    texts = {name: (_ROOT / name).read_text() for name in _tracked(functions.PATTERNS)}
    return "".join(functions.findings(texts))


def _output(title: str) -> str:
    """Run a checker, and return its output, or "" if it finds nothing."""
    tool, *arguments = _CHECKS[title]
    command = [str(_BIN / tool), *arguments, *(_tracked(_FILES[title]) if title in _FILES else ())]
    # protoc searches PATH for its plugin that writes stubs.
    environment = {**os.environ, "PATH": f"{_BIN}{os.pathsep}{os.environ.get('PATH', '')}"}
    done = subprocess.run(command, cwd=_ROOT, env=environment, text=True, capture_output=True)
    return f"{done.stdout}{done.stderr}\n" if done.returncode else ""


_OWN: Final = {"words": _words, "documents": _documents, "functions": _functions}
TITLES: Final = (*_OWN, *_CHECKS)


def main(selected: Sequence[str] = ()) -> int:
    if unknown := sorted({*selected} - {*TITLES}):
        known = ", ".join(TITLES)
        sys.stderr.write(f"lint: invalid value {unknown[0]}: must be one of {known}\n")
        return 2
    failed = []
    for title in selected or TITLES:
        with step(title) as shown:
            found = _OWN[title]() if title in _OWN else _output(title)
            shown.failed = bool(found)
        sys.stdout.write(found)
        failed += [title] * bool(found)
    if failed:
        sys.stdout.write(f"lint: {', '.join(failed)}: see above\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
