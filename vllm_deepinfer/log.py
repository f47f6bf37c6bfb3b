"""Loggers that print like vLLM's own lines, usable before vLLM can be imported."""

from __future__ import annotations

import logging
from functools import cache


def get_logger(name: str) -> logging.Logger:
    """The logger for module `name`, below vLLM's root logger so that its format and level apply."""
    return logging.getLogger(f"vllm.{name}")


@cache
def warn_once(logger: logging.Logger, message: str) -> None:
    """Logs `message` as a warning the first time it is given in this process."""
    logger.warning(message, stacklevel=2)


@cache
def info_once(logger: logging.Logger, message: str) -> None:
    """Logs `message` as information the first time it is given in this process."""
    logger.info(message, stacklevel=2)
