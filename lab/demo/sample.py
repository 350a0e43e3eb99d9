"""Samples of program output in documents: between two marks, written by the program. Pure."""

from __future__ import annotations


def plain(printed: str) -> str:
    """A console's output, without trailing blanks."""
    return "".join(f"{line.rstrip()}\n" for line in printed.splitlines())


def placed(document: str, name: str, command: str, fresh: str) -> str:
    """The document's text with the sample of that name replaced."""
    begin, end = (f"<!-- {name}:{which} -->" for which in ("begin", "end"))
    head, rest = document.split(begin)
    _, tail = rest.split(end)
    return f"{head}{begin}\n```text\n$ {command}\n{fresh}```\n{end}{tail}"
