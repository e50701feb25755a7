"""Jinja templates of the spec over the columns of rows."""

from __future__ import annotations

import jinja2
from jinja2.sandbox import SandboxedEnvironment

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason

# Errors that a template's own expressions may raise.
TEMPLATE_ERRORS = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def compiled(template: str, field: str, reason: Reason) -> jinja2.Template:
    """Compiles a template. Columns that a row lacks are errors. Raises SpecProblem, of this field and reason, with the line."""
    environment = SandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    try:
        return environment.from_string(template)
    except jinja2.TemplateSyntaxError as error:
        raise SpecProblem(reason, field, f"Line {error.lineno}: {error.message}.") from error
