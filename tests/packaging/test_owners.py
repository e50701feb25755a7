"""What `make lint` finds of parts that are handed a method of their owner."""

import ast

import pytest

from tests.support.lint_owners import handed_methods

OWNER = """
class Owner:
    def __init__(self):
        self.part = {call}

    def method(self): ...

    @property
    def value(self): ...
"""


@pytest.mark.parametrize(
    "call",
    [
        "Part(self.method)",
        "module.Part(1, told=self.method)",
        "Part(lambda: self.method())",
        "Part(partial(self.method, 1))",
        "Part([self.method])",
    ],
)
def test_a_part_is_handed_a_method(call: str) -> None:
    assert list(handed_methods(ast.parse(OWNER.format(call=call)))) == [
        (4, call.split("(", maxsplit=1)[0].rsplit(".", maxsplit=1)[-1], "method")
    ]


@pytest.mark.parametrize(
    "call",
    ["Part(self.value)", "Part(self)", "Part(self.method())", "function(self.method)", "Thread(target=self.method)"],
)
def test_values_and_parts_may_be_handed(call: str) -> None:
    assert not list(handed_methods(ast.parse(OWNER.format(call=call))))
