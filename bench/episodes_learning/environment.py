"""The game: follow roads with three tools.

The model is told how a road is travelled and where it begins. Each tool says what lies at the end of a road: another road, or a digit, which is
the answer.
"""

import json

import openai

PLACES = "abcdefgh"
WAYS = {"r": "ride", "s": "sail", "w": "walk"}
"""Letter of a way → the tool that travels it."""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Says what lies at the end of the road on which people {name} from a place.",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
        },
    }
    for name in WAYS.values()
]


async def episode(task, model):
    """Plays one episode. It is worth 1 if the model answers with the digit, else 0."""
    client, messages = model.client(), [{"role": "user", "content": task["prompt"]}]
    while True:
        try:
            answer = await client.chat.completions.create(model=model.name, messages=messages, tools=TOOLS)
        except openai.BadRequestError as error:
            if error.code in ("context_length_exceeded", "episode_budget_exceeded"):
                return 0.0
            raise
        reply = answer.choices[0].message
        messages.append(reply.model_dump(exclude_none=True))
        if not reply.tool_calls:
            return float((reply.content or "").strip() == str(task["answer"]))
        for call in reply.tool_calls:
            content = travelled(task["roads"], call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


def travelled(roads, tool, arguments):
    """Returns what lies at the end of a road; `x` where there is none, since the model wrote the call."""
    try:
        return roads[tool][json.loads(arguments)["place"]]
    except (KeyError, TypeError, ValueError):
        return "x"
