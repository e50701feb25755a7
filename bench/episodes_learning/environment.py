"""The game: follow pointers with a tool. It is told a letter; `look` says what lies there, another letter or a digit; the digit is the answer."""

import json

import openai

PLACES = "abcdefgh"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Says what lies at a place.",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
        },
    }
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
            arguments = json.loads(call.function.arguments)
            place = arguments.get("place") if isinstance(arguments, dict) else None
            content = task["places"].get(place, "x") if isinstance(place, str) else "x"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
