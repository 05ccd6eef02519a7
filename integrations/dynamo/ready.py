"""Waits for a server that loads its model, and says when one is gone.

A server that answers that it is not ready is alive: it loads a model, or opens a lost device again,
and both take minutes. One that does not answer is gone within seconds, but for its start, when
nothing listens yet.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time

import aiohttp

logger = logging.getLogger("longview")

# How often it is asked whether it lives, how long an answer may take, and how often in a row it may
# not answer.
LOOKS_S = 1.0
ANSWERS_S = 10.0
MOST_MISSED = 3
# How often the log says that it is waited for.
SAYS_S = 15.0


class Health(enum.Enum):
    READY = "is ready"
    NOT_READY = "answers, and is not ready"
    SILENT = "does not answer"


async def health(session: aiohttp.ClientSession) -> Health:
    timeout = aiohttp.ClientTimeout(total=ANSWERS_S)
    try:
        async with session.get("/health", timeout=timeout) as response:
            return Health.READY if response.status == 200 else Health.NOT_READY
    except (aiohttp.ClientError, asyncio.TimeoutError):
        return Health.SILENT


class NotReady(RuntimeError):
    """The time to wait is over."""


async def wait_until_ready(
    session: aiohttp.ClientSession, address: str, timeout_s: float, looks_s: float = LOOKS_S
) -> None:
    began = said = time.monotonic()
    while (state := await health(session)) is not Health.READY:
        now = time.monotonic()
        waited = now - began
        if waited >= timeout_s:
            raise NotReady(
                f"{address} {state.value}, after {waited:.0f} s: start the server there, or wait "
                f"longer with --ready-timeout (now {timeout_s:g} s)"
            )
        if now - said >= SAYS_S or said == began:
            logger.info("%s %s; waited %.0f of %g s", address, state.value, waited, timeout_s)
            said = now
        await asyncio.sleep(min(looks_s, timeout_s - waited))
    logger.info("%s is ready after %.0f s", address, time.monotonic() - began)


async def wait_until_gone(
    session: aiohttp.ClientSession, timeout_s: float, looks_s: float = LOOKS_S
) -> str:
    """Returns why the server is of no use any more."""
    missed, since = 0, None
    while True:
        await asyncio.sleep(looks_s)
        state = await health(session)
        missed = missed + 1 if state is Health.SILENT else 0
        if missed >= MOST_MISSED:
            return "does not answer any more"
        if state is Health.READY:
            since = None
            continue
        since = since or time.monotonic()
        if time.monotonic() - since >= timeout_s:
            return f"is not ready since {timeout_s:g} s"
