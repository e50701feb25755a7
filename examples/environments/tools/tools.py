"""Three Python functions that a language model may call, and the episode in which it calls them."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import openai

# The context is full, or a limit of the episode is reached: there is no further turn, but there is a reward.
BUDGET = ("context_length_exceeded", "episode_budget_exceeded")
PARAMETERS = {
    "price": {"item": "string"},
    "multiply": {"a": "number", "b": "number"},
    "add": {"a": "number", "b": "number"},
}
DESCRIPTIONS = {
    "price": "Says what one piece of an item costs.",
    "multiply": "Multiplies two numbers.",
    "add": "Adds two numbers.",
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": DESCRIPTIONS[name],
            "parameters": {
                "type": "object",
                "properties": {argument: {"type": kind} for argument, kind in arguments.items()},
                "required": [*arguments],
            },
        },
    }
    for name, arguments in PARAMETERS.items()
]


async def episode(task: Mapping[str, Any], model: Any) -> float:
    """Plays one episode: the model calls tools until it answers. It is worth 1 if the last word of the answer is right."""
    functions: dict[str, Callable[..., Any]] = {
        "price": lambda item: task["prices"][item],
        "multiply": lambda a, b: a * b,
        "add": lambda a, b: a + b,
    }
    client = model.client()
    messages: list[Any] = [
        {"role": "system", "content": "Use the tools, then answer with the number alone."},
        {"role": "user", "content": task["question"]},
    ]
    while True:
        try:
            answer = await client.chat.completions.create(model=model.name, messages=messages, tools=TOOLS)
        except openai.BadRequestError as error:
            if error.code in BUDGET:
                return 0.0
            raise
        reply = answer.choices[0].message
        messages.append(reply.model_dump(exclude_none=True))
        if not reply.tool_calls:
            break
        for call in reply.tool_calls:
            result = called(functions, call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    words = (reply.content or "").replace(".", " ").split()
    return float(bool(words) and words[-1] == str(task["answer"]))


def called(functions: Mapping[str, Callable[..., Any]], name: str, arguments: str) -> str:
    """Calls a tool. The model is told what it did wrong, since an exception would lose the episode."""
    if name not in functions:
        return f"error: there is no tool {name}; there are {', '.join(functions)}"
    try:
        return json.dumps(functions[name](**json.loads(arguments)))
    except (TypeError, ValueError, KeyError) as error:
        return f"error: {type(error).__name__}: {error}"
