"""Asks the API server for what a plan has to know and no watch reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from longboat_operator.kube.client import KubeClient
from longboat_operator.kube.clock import ServerClock
from longboat_operator.kube.errors import AlreadyExistsError, ApiError, KubeError, NotFoundError, is_rejection
from longboat_operator.kube.resources import BY_KIND, EVENT, POD, SECRET
from longboat_operator.model import DEFAULT_ACCOUNT, Object, Observed, Target
from longboat_operator.pod_warnings import KEPT_SECONDS, PodWarnings
from longboat_operator.rejections import Rejections
from longboat_operator.watch.pod_times import with_server_times
from longboat_operator.watch.trim import trim

# Look-ups of one plan that are under way at once: those of a big job leave room for other jobs' requests.
_AT_ONCE = 8

log = structlog.get_logger(__name__)


class LookUps:
    """Looks things up for any job."""

    def __init__(
        self, client: KubeClient, warnings: PodWarnings, server_clock: ServerClock, clock: Callable[[], float]
    ) -> None:
        """`clock` gives monotonic seconds."""
        self._client = client
        self._warnings = warnings
        self._server_clock = server_clock
        self._clock = clock
        # By namespace: when the account `default` was looked up, and the answer.
        self._default_accounts: dict[str, tuple[float, Object | None]] = {}

    async def answers(
        self, targets: tuple[Target, ...], observed: Observed, rejections: Rejections
    ) -> Mapping[Target, Object | None]:
        """Returns what has each kind and name, None where nothing has.

        That is an object, of a Secret its name alone, and for `Event` the newest warning about the pod of that name. Warnings and the
        account `default` may be a minute old, so that jobs which start together share one request.

        Targets that the server refuses to show, or lately refused, are left out; a Secret that it refuses counts as there. So are those
        without a final answer for `LASTING_SECONDS`, which the plan then reports.

        Raises:
            KubeError: the server gave no final answer (none at all, 401, 429 or 5xx), for less than `LASTING_SECONDS` so far.
            LeadershipLostError: this process may not write any more; a Secret is looked up by the dry run of a write.
        """
        objects: dict[Target, Object | None] = {}
        limit = asyncio.Semaphore(_AT_ONCE)

        async def answer(target: Target) -> None:
            try:
                async with limit:
                    objects[target] = await self._look_up(*target, observed)
            except KubeError as error:
                if is_rejection(error):
                    rejections.note(target, str(error))
                elif not rejections.note_unanswered(target, str(error)):
                    raise
                log.warning("look-up refused", key=str(observed.key), kind=target[0], name=target[1], error=str(error))

        await asyncio.gather(*(answer(target) for target in targets if not rejections.waits(target)))
        return objects

    async def _look_up(self, kind: str, name: str, observed: Observed) -> Object | None:
        namespace = observed.key.namespace
        if kind == SECRET.kind:
            return await self._secret(namespace, name)
        if kind == EVENT.kind:
            uid = observed.children["Pod"][name]["metadata"]["uid"]
            return await self._warnings.about(namespace, uid)
        if (kind, name) == DEFAULT_ACCOUNT:
            return await self._default_account(namespace)
        return await self._live(kind, namespace, name)

    async def _default_account(self, namespace: str) -> Object | None:
        now = self._clock()
        self._default_accounts = {
            name: answer for name, answer in self._default_accounts.items() if now - answer[0] < KEPT_SECONDS
        }
        if namespace not in self._default_accounts:
            self._default_accounts[namespace] = now, await self._live(DEFAULT_ACCOUNT[0], namespace, DEFAULT_ACCOUNT[1])
        return self._default_accounts[namespace][1]

    async def _live(self, kind: str, namespace: str, name: str) -> Object | None:
        try:
            live = {"kind": kind, **await self._client.get(BY_KIND[kind], namespace, name)}
        except NotFoundError:
            return None
        return trim(with_server_times(live, None, self._server_clock.now()) if kind == POD.kind else live)

    async def _secret(self, namespace: str, name: str) -> Object | None:
        """Finds out by a dry run whether the name is free, which takes only the right to create. Returns None if so, else the name alone.

        The name also counts as taken if the dry run is refused for another reason, such as a quota.
        """
        body = {"apiVersion": "v1", "kind": SECRET.kind, "metadata": {"namespace": namespace, "name": name}}
        try:
            await self._client.create(SECRET, body, dry_run=True)
        except AlreadyExistsError:
            return body
        except ApiError as error:
            if not is_rejection(error):
                raise
            return body
        return None
