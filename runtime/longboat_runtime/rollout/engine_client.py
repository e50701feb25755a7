"""One engine as recorders see it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from longboat_runtime.rollout.engine import EngineDead, TurnsRefused
from longboat_runtime.rollout.ray_cluster import death_cause
from longboat_runtime.rollout.turn_router import TurnLost
from longboat_runtime.turns import TurnReply, TurnRequest
from longboat_runtime.weights.gate import UpdateFailed

if TYPE_CHECKING:
    from ray.actor import ActorHandle


class EngineClient:
    """`TurnEngine` over an engine's actor; it may be handed to other actors.

    A call fails at once when the actor's process ends, and when Ray has noticed the end of its node, which takes up to a minute. A reply of
    more than 100 kB is kept by the engine's node until it has been fetched, and lost with it.
    """

    def __init__(self, actor: ActorHandle) -> None:
        self.actor = actor

    async def turn(self, request: TurnRequest, begun: TurnReply | None) -> TurnReply:
        """See TurnEngine. What the engine's code raises otherwise is raised here."""
        drawing = self.actor.turn.remote(request, begun)
        try:
            reply: TurnReply = await drawing
        except asyncio.CancelledError:
            ray.cancel(drawing)
            raise
        except (EngineDead, ActorDiedError) as error:
            raise TurnLost(death_cause(error), died=True) from error
        except (UpdateFailed, TurnsRefused) as error:
            raise TurnLost(death_cause(error)) from error
        except RayTaskError:
            raise
        except RayError as error:
            raise TurnLost(death_cause(error)) from error
        return reply
