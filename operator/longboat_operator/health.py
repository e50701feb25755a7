"""Judges whether this process is alive and its knowledge current, and serves the answer over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

# A plan takes a few requests of a few seconds at most.
PLANS_LATE_SECONDS = 120.0
PLANS_STUCK_SECONDS = 600.0
# Notes in an answer: an operator of a thousand namespaces may have ten thousand.
MOST_NOTES = 50


@dataclass(frozen=True, slots=True)
class Health:
    """Says why the process should not be trusted (`not_ready`) and why it should be restarted (`not_alive`).

    `notes` tell people what a process that is ready doesn't serve.
    """

    not_ready: tuple[str, ...] = ()
    not_alive: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def judge(
    watch_problems: list[str], watch_dead: bool, stalled_seconds: float, leading: bool, notes: Iterable[str] = ()
) -> Health:
    """Judges whether to trust the process, and whether to restart it. Pure.

    Rules: a standby can be ready: readiness says that the cache is current and that plans are completed, not who leads. A long silence of
    the API server makes a process unready, but is no reason to restart it. Nor is a long line of jobs, as long as plans are completed.
    """
    not_ready = list(watch_problems)
    not_alive = ["a watch is dead and only a restart revives it"] if watch_dead else []
    if leading and stalled_seconds > PLANS_LATE_SECONDS:
        not_ready.append(f"no plan has been completed for {stalled_seconds:.0f} s")
    if leading and stalled_seconds > PLANS_STUCK_SECONDS:
        not_alive.append(f"workers are stuck: no plan has been completed for {stalled_seconds:.0f} s")
    return Health(tuple(not_ready), tuple(not_alive), tuple(notes))


async def serve_health(port: int, health: Callable[[], Health]) -> web.AppRunner:
    """Starts to serve `/healthz` and `/readyz`: 200 `ok`, or 503 and the reasons, one per line; `/readyz` adds the notes.

    The runner's `cleanup` ends it.
    """

    async def healthz(_: web.Request) -> web.Response:
        return _answer(health().not_alive)

    async def readyz(_: web.Request) -> web.Response:
        judged = health()
        return _answer(judged.not_ready, judged.notes)

    return await _serve(port, {"/healthz": healthz, "/readyz": readyz})


async def serve_metrics(port: int, registries: tuple[CollectorRegistry, ...]) -> web.AppRunner:
    """Starts to serve `/metrics` in Prometheus' text format. The runner's `cleanup` ends it."""

    async def metrics(_: web.Request) -> web.Response:
        body = b"".join(generate_latest(registry) for registry in registries)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    return await _serve(port, {"/metrics": metrics})


def _answer(reasons: tuple[str, ...], notes: tuple[str, ...] = ()) -> web.Response:
    lines = [*(reasons or ("ok",)), *notes[:MOST_NOTES]]
    if len(notes) > MOST_NOTES:
        lines.append(f"and {len(notes) - MOST_NOTES} more: all are in the metric longboat_watch_failing")
    return web.Response(status=503 if reasons else 200, text="\n".join(lines) + "\n")


async def _serve(port: int, routes: dict[str, Callable[[web.Request], Awaitable[web.Response]]]) -> web.AppRunner:
    app = web.Application()
    for path, handler in routes.items():
        app.router.add_get(path, handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner
