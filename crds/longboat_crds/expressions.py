"""Expressions over an API object that are CEL for the API server and Python for everybody else, from one declaration. Pure.

Python evaluates on the JSON form with defaults filled in and unset fields left out, which is what the API server sees.
As in CEL, reading a field that is not there is an error: guard it with `present` or `if_present`.
Each function returns an expression; its docstring says what that expression means.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longboat_crds.quantities import millicores

Scope = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Expression:
    """CEL text that can stand as an operand, and its meaning on a scope of variables (`self` is the object)."""

    cel: str
    evaluate: Callable[[Scope], Any]


def field(path: str, variable: str = "self") -> Expression:
    """Reads the value at a dotted path below a variable."""
    keys = path.split(".")

    def read(scope: Scope) -> Any:
        value = scope[variable]
        for key in keys:
            value = value[key]
        return value

    return Expression(f"{variable}.{path}", read)


def field_or(path: str, default: Any) -> Expression:
    """Reads the value at a path, or the default where there is none and the API server fills in none (`READER_DEFAULT`)."""
    return choose(present(path), field(path), constant(default))


def present(path: str, variable: str = "self") -> Expression:
    """Holds where there is a value at the path; an object on the way to it may be missing, too."""
    keys = path.split(".")
    steps = [".".join([variable, *keys[: n + 1]]) for n in range(len(keys))]

    def read(scope: Scope) -> bool:
        value = scope[variable]
        for key in keys:
            if key not in value:
                return False
            value = value[key]
        return True

    return Expression("(" + " && ".join(f"has({step})" for step in steps) + ")", read)


def constant(value: Any) -> Expression:
    """Stands for a string, number, boolean, or a list of them."""
    return Expression(_literal(value), lambda _: value)


def item(variable: str) -> Expression:
    """Reads a variable, such as the item or the key that `every` names."""
    return Expression(variable, lambda scope: scope[variable])


def starts_with(text: Expression, beginning: str) -> Expression:
    """Holds where the text begins with this."""
    return Expression(
        f"{text.cel}.startsWith({_literal(beginning)})", lambda s: bool(text.evaluate(s).startswith(beginning))
    )


def matches(text: Expression, pattern: str) -> Expression:
    """Holds where a part of the text matches the regular expression; `^` and `$` are its ends."""
    return Expression(
        f"{text.cel}.matches({_literal(pattern)})", lambda s: re.search(pattern, text.evaluate(s)) is not None
    )


def equals(first: Expression, second: Expression) -> Expression:
    """Holds where the two values are the same."""
    return _binary("==", first, second, lambda a, b: a == b)


def at_most(first: Expression, second: Expression) -> Expression:
    """Holds where first <= second."""
    return _binary("<=", first, second, lambda a, b: a <= b)


def less_than(first: Expression, second: Expression) -> Expression:
    """Holds where first < second."""
    return _binary("<", first, second, lambda a, b: a < b)


def one_of(value: Expression, values: Sequence[str]) -> Expression:
    """Holds where the value is one of these."""
    return contains(constant(list(values)), value)


def contains(items: Expression, value: Expression) -> Expression:
    """Holds where the list has the value."""
    return _binary("in", value, items, lambda a, b: a in b)


def product(first: Expression, second: Expression) -> Expression:
    """Multiplies the two: first x second."""
    return _binary("*", first, second, lambda a, b: a * b)


def plus(first: Expression, second: Expression) -> Expression:
    """Adds the two: first + second."""
    return _binary("+", first, second, lambda a, b: a + b)


def divides(divisor: Expression, number: Expression) -> Expression:
    """Holds where the whole number is a multiple of the divisor."""
    return Expression(
        f"({number.cel} % {divisor.cel} == 0)", lambda s: bool(number.evaluate(s) % divisor.evaluate(s) == 0)
    )


def cores(quantity: Expression) -> Expression:
    """Converts a CPU quantity to a number of cores."""
    return Expression(
        f"quantity({quantity.cel}).asApproximateFloat()", lambda s: millicores(quantity.evaluate(s)) / 1000
    )


def floating(number: Expression) -> Expression:
    """Turns a whole number into one that may have a fraction: CEL calculates with numbers of one kind only."""
    return Expression(f"double({number.cel})", lambda s: float(number.evaluate(s)))


def empty(items: Expression) -> Expression:
    """Holds where the list has no item."""
    return Expression(f"(size({items.cel}) == 0)", lambda s: len(items.evaluate(s)) == 0)


def unfilled(path: str) -> Expression:
    """Holds where the object of unknown fields at the path has none. CEL has no type for such an object, hence `dyn`."""
    items = field(path)
    return Expression(f"(size(dyn({items.cel})) == 0)", lambda s: not items.evaluate(s))


def size(items: Expression) -> Expression:
    """Counts the items of the list, or the characters of the text."""
    return Expression(f"size({items.cel})", lambda s: len(items.evaluate(s)))


def negation(operand: Expression) -> Expression:
    """Holds where the operand doesn't."""
    return Expression(f"!{operand.cel}", lambda s: not operand.evaluate(s))


def both(*operands: Expression) -> Expression:
    """Holds where all operands hold; a later one is read only if those before it hold."""
    cel = " && ".join(o.cel for o in operands)
    return Expression(f"({cel})", lambda s: all(o.evaluate(s) for o in operands))


def either(*operands: Expression) -> Expression:
    """Holds where at least one operand holds; a later one is read only if those before it do not."""
    cel = " || ".join(o.cel for o in operands)
    return Expression(f"({cel})", lambda s: any(o.evaluate(s) for o in operands))


def implies(condition: Expression, conclusion: Expression) -> Expression:
    """Holds where the conclusion holds or the condition does not; the conclusion is read only where the condition holds."""
    return either(negation(condition), conclusion)


def choose(condition: Expression, yes: Expression, no: Expression) -> Expression:
    """Chooses the value of `yes` where the condition holds, else that of `no`."""
    return Expression(
        f"({condition.cel} ? {yes.cel} : {no.cel})",
        lambda s: (yes if condition.evaluate(s) else no).evaluate(s),
    )


def if_present(path: str, conclusion: Callable[[Expression], Expression]) -> Expression:
    """Holds where there is no value at the path, or the conclusion holds for it."""
    return implies(present(path), conclusion(field(path)))


def exactly_one(*names: str) -> Expression:
    """Holds where exactly one of these fields of the object is given."""
    count = " + ".join(f"(has(self.{name}) ? 1 : 0)" for name in names)
    return Expression(f"({count} == 1)", lambda s: sum(name in s["self"] for name in names) == 1)


def every(path: str, variable: str, body: Expression, within: str = "self") -> Expression:
    """Holds where `body`, which reads the item as `variable`, holds for every item of the list, or every key of the map, at the path.

    The path is one below the variable `within`.
    """
    items = field(path, within)
    return Expression(
        f"{items.cel}.all({variable}, {body.cel})",
        lambda s: all(body.evaluate({**s, variable: item}) for item in items.evaluate(s)),
    )


def some(path: str, variable: str, body: Expression, within: str = "self") -> Expression:
    """Holds where `body`, which reads the item as `variable`, holds for an item of the list at the path below the variable `within`."""
    items = field(path, within)
    return Expression(
        f"{items.cel}.exists({variable}, {body.cel})",
        lambda s: any(body.evaluate({**s, variable: item}) for item in items.evaluate(s)),
    )


def total(path: str, name: str) -> Expression:
    """Sums the field `name` of the items of the list at the path."""
    items = field(path)
    return Expression(f"{items.cel}.map(i, i.{name}).sum()", lambda s: sum(item[name] for item in items.evaluate(s)))


def sum_over(path: str, variable: str, body: Expression) -> Expression:
    """Sums `body`, which reads the item as `variable`, over the items of the list at the path."""
    items = field(path)
    return Expression(
        f"{items.cel}.map({variable}, {body.cel}).sum()",
        lambda s: sum(body.evaluate({**s, variable: item}) for item in items.evaluate(s)),
    )


def _binary(operator: str, first: Expression, second: Expression, meaning: Callable[[Any, Any], Any]) -> Expression:
    return Expression(
        f"({first.cel} {operator} {second.cel})", lambda s: meaning(first.evaluate(s), second.evaluate(s))
    )


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return str(value)
