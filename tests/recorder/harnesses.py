"""Random harnesses: they continue, compact, branch, rewrite, retry, and send equal requests at once."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from longboat_runtime.recorder.record import Recording
from longboat_runtime.recorder.refusals import Refused
from longboat_runtime.trajectories import trajectory
from tests.recorder.world import NO_CALLS, TOOLS, Client, body_of, client_of, says

# Templates of families that append messages to replies, for those of users, and of tools too.
APPENDING = (
    *("gemma4", "glm4moe", "gptoss", "lfm2_v2", "llama3_1"),
    *("nemotron_3_nano", "phi3", "qwen2_5", "qwen3", "qwen3_5_think"),
)


def as_clients_send(message: Mapping[str, Any], dice: random.Random) -> dict[str, Any]:
    """A reply in one of the forms in which clients return it: what is equal to it is still it."""
    sent = {**message, "refusal": None, "annotations": []}
    if dice.random() < 0.3:
        sent.pop("reasoning", None)
    content = sent["content"]
    if content is not None:
        sent["content"] = dice.choice([content, f"{content}\n", [{"type": "text", "text": content}]])
    else:
        sent["content"] = dice.choice([None, "", []])
    if calls := sent.get("tool_calls"):
        sent["tool_calls"] = [
            {
                "id": f"other{number}",
                "type": "function",
                "function": {
                    "name": call["function"]["name"],
                    "arguments": json.dumps(json.loads(call["function"]["arguments"]), sort_keys=True, indent=1),
                },
            }
            for number, call in enumerate(calls)
        ]
    return sent


def answers_to(reply: Mapping[str, Any], dice: random.Random) -> list[dict[str, Any]]:
    """The messages that an environment sends behind a reply: results of its calls, or a user's message."""
    if calls := reply.get("tool_calls"):
        return [
            says("tool", f"{dice.choice(['e', 'user', 'ok <b>'])} {dice.randint(0, 9)}", tool_call_id=call["id"])
            for call in calls
        ]
    text = dice.choice(["go on", "é😀", " \n why?"])
    return [says("user", f"{text} {dice.randint(0, 9)}")]


class Harness:
    """One launch of a harness: the same seed asks for the same, as long as it is answered the same."""

    def __init__(self, client: Client, seed: int) -> None:
        self.client, self.dice = client, random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.tools = TOOLS if self.dice.random() < 0.6 and client.engine.name not in NO_CALLS else None
        self.conversations: list[list[Any]] = [[says("system", "Play."), says("user", "Begin.")]]

    def play(self) -> Recording:
        for _ in range(self.dice.randint(1, 12)):
            self.step()
        return self.client.record.recording()

    def step(self) -> None:
        dice = self.dice
        number, kind = dice.randrange(len(self.conversations)), dice.random()
        messages = self.conversations[number]
        if kind < 0.1:
            messages = [*messages[:1], says("user", f"Summary {dice.randint(0, 99)}.")]
            self.counts["compact"] += 1
        elif kind < 0.2:
            self.conversations.append(list(messages))
            self.counts["branch"] += 1
        elif kind < 0.27:
            messages = [
                {**message, "content": "rewritten"}
                if message["role"] == "assistant" and message["content"]
                else message
                for message in messages
            ]
            self.counts["rewrite"] += 1
        body = body_of(messages, **({"tools": self.tools} if self.tools else {}))
        try:
            replies = self.parallel(body) if kind > 0.9 else [self.request(body)]
        except Refused:
            self.counts["refused"] += 1
            self.conversations[number] = messages[:2]
            return
        self.counts["answered"] += len(replies)
        follow = []
        for reply in replies:
            if reply is not None:
                sent = as_clients_send(reply, dice)
                follow.append(
                    [*messages, sent, *answers_to({**reply, **sent, "tool_calls": sent.get("tool_calls")}, dice)]
                )
        if follow:
            self.conversations[number : number + 1] = follow

    def request(self, body: bytes) -> Mapping[str, Any] | None:
        """Asks once, again after giving up, or gives up for good."""
        client, kind = self.client, self.dice.random()
        call, turn = client.begin(body)
        early = self.dice.random() < 0.5  # gives up before the turn is drawn
        if kind < 0.2:
            if not early:
                client.complete(call, turn)
            client.record.close(call)
            if kind < 0.05:
                if early:
                    client.complete(call, turn)
                self.counts["given up"] += 1
                return None
            again, second = client.begin(body, retried=kind < 0.1)
            assert again is call
            assert second is None, "a retry draws nothing"
            self.counts["retry"] += 1
            if early:
                client.complete(call, turn)
        else:
            client.complete(call, turn)
        client.record.deliver(call)
        return call.message

    def parallel(self, body: bytes) -> list[Mapping[str, Any] | None]:
        """Sends equal requests at once, whose answers come in any order."""
        begun = [self.client.begin(body) for _ in range(self.dice.randint(2, 3))]
        self.counts["parallel"] += 1
        assert len({call.number for call, _ in begun}) == len(begun), "open requests are no repeats of each other"
        self.dice.shuffle(begun)
        for call, turn in begun:
            self.client.complete(call, turn)
            self.client.record.deliver(call)
        return [call.message for call, _ in sorted(begun, key=lambda pair: pair[0].number)]


def played(template: str, seed: int) -> tuple[Harness, Recording]:
    harness = Harness(client_of(template, seed=seed), seed)
    return harness, harness.play()


def check(harness: Harness, recording: Recording) -> None:
    """Each delivered turn is trained once, right behind the tokens that the engine drew it behind, by its own record."""
    client = harness.client
    calls = {call.number: call for call in client.record._calls}
    delivered = {number for number, call in calls.items() if call.delivered}
    expected = sorted(
        (tuple(turn.prompt_ids.tolist()), tuple(ids)) for turn, ids in client.engine.drawn if turn.number in delivered
    )
    if not delivered:
        assert not recording.turns
        return
    trained = []
    for segment in trajectory(recording.turns).segments:
        ids = segment.token_ids.tolist()
        trained += [(tuple(ids[:start]), tuple(ids[start:end])) for start, end in segment.trained]
        drawn = np.concatenate([segment.token_ids[start:end] for start, end in segment.trained])
        assert len(drawn) == len(segment.logprobs)
    assert sorted(trained) == expected
    assert len({turn.seed for turn, _ in client.engine.drawn}) == len(client.engine.drawn), "no two turns have one seed"
