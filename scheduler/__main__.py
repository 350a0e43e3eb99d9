"""`python -m scheduler`: flags and environment in; a service, an answer or a manifest out.

The only module of the scheduler that reads argv and the environment, or sets up logging.
"""

from __future__ import annotations

from scheduler.command_line import application


def main() -> None:
    application(prog_name="python -m scheduler")


if __name__ == "__main__":
    main()
