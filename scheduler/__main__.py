"""Entry point of `python -m scheduler`."""

from __future__ import annotations

from scheduler.command_line import application

if __name__ == "__main__":
    application(prog_name="python -m scheduler")
