"""Causes are read out of tracebacks as Python, Ray, pydantic, torch and vLLM's processes write them."""

import asyncio
import logging
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError, field_validator, model_validator

from longboat_runtime.tracebacks import MOST_CHARACTERS, cause, cause_in, errors_in, formatted, shortened

FRAMES = '  File "/vllm/engine.py", line 7, in start\n    load()\n    ~~~~^^\n  File "/vllm/load.py", line 3, in load\n'


class Engine(BaseModel):
    ranks: int = 1
    length: int = 1

    @field_validator("ranks")
    @classmethod
    def _divides(cls, ranks: int) -> int:
        if ranks % 2:
            raise ValueError("3 ranks can't share 4 heads.")
        return ranks

    @model_validator(mode="after")
    def _fits(self) -> "Engine":
        if self.length > 9:
            too_long()
        return self


def too_long() -> None:
    raise ValueError("a length of 10 is greater than 9. See https://example.org/lengths for more.")


def raised_by(**fields: object) -> BaseException:
    with pytest.raises(ValidationError) as caught:
        Engine(**fields)  # type: ignore[arg-type]
    return caught.value


def test_of_a_validation_error_the_messages_count_not_the_link_at_its_end() -> None:
    assert cause_in(raised_by(ranks=3, length="x")) == (
        "Engine.ranks: 3 ranks can't share 4 heads.; "
        "Engine.length: Input should be a valid integer, unable to parse string as an integer"
    )


def test_of_a_validation_error_of_the_whole_the_place_is_that_of_the_validator() -> None:
    error = raised_by(length=10)
    assert str(error).splitlines()[-1].strip().startswith("For further information visit")
    assert cause_in(error) == "a length of 10 is greater than 9."
    assert errors_in(formatted(error))[-1].frames[-1].function == "too_long"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            RuntimeError(
                "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported.\nCompile with X."
            ),
            "CUDA error: out of memory",
        ),
        (
            RuntimeError("Error(s) in loading state_dict for Linear:\n\tsize mismatch for weight: (3, 3), not (2, 2)."),
            "Error(s) in loading state_dict for Linear: size mismatch for weight: (3, 3), not (2, 2).",
        ),
        (KeyError("lm_head"), "KeyError: 'lm_head'"),
        (ValueError(), "ValueError"),
        (ValueError("see https://example.org/a"), "see https://example.org/a"),
        (ValueError("\n\nfirst\tline  of it\nhint"), "first line of it"),
    ],
)
def test_hints_are_left_out_and_types_named_where_the_message_is_no_sentence(error: BaseException, text: str) -> None:
    assert cause_in(error) == text


def test_an_assertion_without_a_message_is_told_by_its_source() -> None:
    assert (
        cause(f"{FRAMES}    assert size % ranks == 0\nAssertionError\n")
        == "AssertionError at `assert size % ranks == 0`"
    )


def test_the_cause_of_a_chain_is_what_was_raised_last() -> None:
    def load() -> None:
        try:
            raise KeyError("a")
        except KeyError as error:
            raise ValueError("no model at /model") from error

    with pytest.raises(ValueError, match="no model") as caught:
        load()
    assert [each.name for each in errors_in(formatted(caught.value))] == ["KeyError", "ValueError"]
    assert cause_in(caught.value) == "no model at /model"


async def test_a_group_is_read_to_the_error_in_it() -> None:
    async def fail() -> None:
        raise ValueError("no model at /model")

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())
    assert cause_in(caught.value) == "no model at /model"


def test_what_ray_passes_on_is_read_to_the_error_in_it() -> None:
    text = (
        f"ray::EngineActor.start() (pid=7, ip=10.0.0.1)\n{FRAMES}ValueError: 10 is greater than 9\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        f"ray::EngineActor.start() (pid=7, ip=10.0.0.1)\n{FRAMES}"
        "longboat_runtime.rollout.engine.EngineDead: it can't start: 10 is greater than 9"
    )
    assert [error.name for error in errors_in(text)] == ["ValueError", "EngineDead"]
    assert cause(text) == "it can't start: 10 is greater than 9"


def test_processes_that_write_in_turn_are_read_one_by_one() -> None:
    """vLLM's loggers write their header before each line, and two workers may fail at the same moment."""

    def written(process: str, message: str) -> list[str]:
        stream = StringIO()
        handler = logging.StreamHandler(stream)
        handler.setFormatter(logging.Formatter("%(message)s"))
        text = f"failed to start.\nTraceback (most recent call last):\n{FRAMES}    raise X\nValueError: {message}"
        handler.emit(logging.makeLogRecord({"msg": text}))
        header = f"({process} pid=12) ERROR 11-28 20:01:02 [worker.py:953] "
        return [header + line for line in stream.getvalue().splitlines()]

    first, second = written("Worker_TP0", "one"), written("Worker_TP1", "two\nhint")
    mixed = [line for pair in zip(first, second, strict=False) for line in pair] + second[len(first) :]
    errors = errors_in("loading\n" + "\r\n".join(mixed))
    assert [(error.message, len(error.frames)) for error in errors] == [("one", 2), ("two\nhint", 2)]
    assert errors[0].frames[-1].line == "raise X"


def test_without_a_traceback_there_is_no_cause() -> None:
    assert cause("") is None
    assert cause("ValueError: a line of a log") is None


@given(st.text())
def test_whatever_is_written_a_cause_is_one_line_of_bounded_length(message: str) -> None:
    line = cause_in(ValueError(message))
    assert line
    assert len(line) <= MOST_CHARACTERS
    assert len(line.splitlines()) == 1
    text = cause(f"{FRAMES}ValueError: {message}")
    assert text is None or len(text.splitlines()) <= 1


@given(st.text(), st.integers(2, 40))
def test_what_is_shortened_is_a_beginning(text: str, most: int) -> None:
    short = shortened(text, most)
    assert len(short) <= most
    assert " ".join(text.split()).startswith(short.removesuffix("…"))


def test_whole_sentences_are_preferred() -> None:
    assert shortened("It is too long. Lower it.", 20) == "It is too long."
    assert shortened("It is too long. Lower it.", 10) == "It is too…"
