"""Configures the log of the runtime's own processes: standard error, for people."""

from __future__ import annotations

import logging
import sys

import structlog


def configure(*, quiet: bool = False) -> None:
    """Sets up logging from INFO on, or of errors only if `quiet`.

    Loggers of the standard library write to the same place. Those of other packages begin at WARNING at least, unless they set a level.
    """
    level = logging.ERROR if quiet else logging.INFO
    colours = sys.stderr.isatty()
    logging.basicConfig(stream=sys.stderr, level=max(level, logging.WARNING), format="%(name)s: %(message)s")
    logging.getLogger("longboat_runtime").setLevel(level)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=colours),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
