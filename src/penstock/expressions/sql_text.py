"""SQL text: reads the text of an expression, and finds the position of each part of it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import sqlglot
from sqlglot import exp, tokens

from penstock.errors import ExpressionError

__all__ = ["ExpressionDialect", "SqlPart", "SqlText", "parts_of"]

MAX_LENGTH: Final = 20_000
_PREFIX: Final = "SELECT "
_PARAMETER: Final = re.compile(r"\$\{\s*([A-Za-z_][A-Za-z_0-9]*)\s*\}")
# Quoted texts, names and comments; a second group that is empty has no end.
_QUOTED: Final = re.compile(
    r"(')(?:[^']|'')*('?)|(\")[^\"]*(\"?)|(`)[^`]*(`?)|(--)[^\n]*|(/\*)(?:.*?)(\*/|\Z)", re.DOTALL
)

# sqlglot warns of statements that it does not know; here they become errors.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


class ExpressionDialect(sqlglot.Dialect):
    """Standard SQL, whose functions are left as they are written: penstock has its own table of them."""

    class Tokenizer(tokens.Tokenizer):  # noqa: D106  # the name is sqlglot's
        IDENTIFIERS: ClassVar[list[str | tuple[str, str]]] = ['"', "`"]

    class Parser(sqlglot.Parser):  # noqa: D106  # as above
        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: sqlglot.Parser.FUNCTION_PARSERS[name] for name in ("CAST", "EXTRACT", "TRY_CAST")
        }
        NO_PAREN_FUNCTIONS: ClassVar[dict[Any, Any]] = {}
        NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            "CASE": sqlglot.Parser.NO_PAREN_FUNCTION_PARSERS["CASE"]
        }


_LONG_WORD: Final = re.compile(r"(\S{60})\S{60,}")


@dataclass(frozen=True)
class SqlText:
    """The text of an expression, or of several, with the errors that point into it.

    `ahead` is how many characters the parser has read before the text.
    """

    text: str
    ahead: int = len(_PREFIX)

    def error(self, at: int, reason: str) -> ExpressionError:
        """Return an error with a reason and the line of the text, with a caret below the position."""
        at = min(max(at, 0), len(self.text))
        # A word of the text may be as long as the text.
        reason = _LONG_WORD.sub(r"\1…", reason)
        number = self.text.count("\n", 0, at) + 1
        line = self.text.split("\n")[number - 1]
        column = at - (self.text.rfind("\n", 0, at) + 1)
        place = f"column {column + 1}" if "\n" not in self.text else f"line {number}, column {column + 1}"
        # A long line is cut around the position, and what does not print must not move the caret.
        first = max(0, column - 60)
        shown = "".join(c if c.isprintable() else " " for c in line[first : column + 60])
        return ExpressionError(f"{reason} (at {place})\n  {shown}\n  {' ' * (column - first)}^")

    def read(self) -> list[exp.Expression]:
        """Return the parsed expressions, which commas separate. Raises ExpressionError."""
        if len(self.text) > MAX_LENGTH:
            raise self.error(MAX_LENGTH, f"The expression is longer than {MAX_LENGTH} characters; split it.")
        if not self.text.strip():
            raise self.error(0, "The expression is empty.")
        prepared = self.prepared()
        try:
            found = sqlglot.parse(_PREFIX + prepared, dialect=ExpressionDialect)
        except sqlglot.ParseError as e:
            raise self.syntax_error(e.errors) from None
        except RecursionError:
            raise self.error(0, "The expression is nested too deeply; split it.") from None
        except sqlglot.errors.SqlglotError:
            raise self.error(0, "The expression cannot be read as SQL.") from None
        except Exception:  # a malformed text makes the parser raise anything
            raise self.error(0, "The expression cannot be read as SQL.") from None
        if len(found) != 1 or not isinstance(found[0], exp.Select):
            at = self.text.find(";")
            raise self.error(
                max(at, 0), "This is more than one expression; remove what comes after the first."
            )
        self._check_clauses(found[0])
        expressions: list[exp.Expression] = found[0].expressions
        if not expressions:
            raise self.error(0, "The expression is empty.")
        return expressions

    def position(self, node: exp.Expression, *, otherwise: int = 0) -> int:
        """Return where a part of the text begins: its first name or literal."""
        starts = [one.meta["start"] for one in parts_of(node) if "start" in one.meta]
        if not starts:
            return otherwise
        return int(min(starts)) - self.ahead

    def prepared(self) -> str:
        """Return the text as the parser reads it: with `:name` in place of `${name}`, so that positions stay."""
        pieces: list[str] = []
        done = 0
        for start, end in self._outside_quotes():
            pieces += [self.text[done:start], self._parameters_in(start, end)]
            done = end
        return "".join([*pieces, self.text[done:]])

    def _outside_quotes(self) -> Iterator[tuple[int, int]]:
        """Yield the stretches of the text outside of quotes and comments."""
        done = 0
        for found in _QUOTED.finditer(self.text):
            opening = next(group for group in found.groups() if group)
            if opening != "--" and not found.group(found.lastindex or 0):
                what = {"'": "text", '"': "name", "`": "name", "/*": "comment"}[opening]
                raise self.error(found.start(), f"The {what} that begins with {opening} has no end.")
            yield done, found.start()
            done = found.end()
        yield done, len(self.text)

    def _parameters_in(self, start: int, end: int) -> str:
        part = self.text[start:end]
        for sign in (":", "?", "@"):
            for found in re.finditer(re.escape(sign), part):
                if (
                    part[found.start() - 1 : found.start()] != ":"
                    and part[found.end() : found.end() + 1] != ":"
                ):
                    raise self.error(
                        start + found.start(),
                        f"{sign!r} has no meaning here; write a parameter as ${{name}}.",
                    )
        replaced = _PARAMETER.sub(lambda m: f":{m.group(1)}".ljust(len(m.group())), part)
        at = replaced.find("$")
        if at >= 0:
            raise self.error(start + at, "'$' begins a parameter, such as ${limit}: a name in braces.")
        return replaced

    def syntax_error(self, errors: Sequence[dict[str, Any]]) -> ExpressionError:
        """Return the error for text that the parser cannot read."""
        first = errors[0] if errors else {}
        highlight = str(first.get("highlight") or "")
        line, column = int(first.get("line") or 1), int(first.get("col") or 1) - max(len(highlight), 1)
        lines = self.text.split("\n")
        at = sum(len(one) + 1 for one in lines[: line - 1]) + column - (self.ahead if line == 1 else 0)
        if at < 0:
            return self.error(0, "The expression cannot be read as SQL.")
        after = self.text[at + len(highlight) :].strip()
        if not after and highlight and "Unexpected token" not in str(first.get("description")):
            return self.error(
                len(self.text.rstrip()), f"The expression ends after {highlight!r}, but is incomplete."
            )
        return self.error(at, f"The expression cannot be read at {highlight!r}.")

    def _check_clauses(self, select: exp.Select) -> None:
        """Raise ExpressionError for anything besides expressions, such as FROM."""
        for name, value in select.args.items():
            if name != "expressions" and value:
                word = name.strip("_").upper().replace("_", " ")
                found = re.search(rf"\b{word.split()[0]}\b", self.text, re.IGNORECASE)
                at = 0 if found is None else found.start()
                raise self.error(
                    at, f"{word} is not part of an expression; expressions only see their record."
                )


def parts_of(node: exp.Expression) -> Iterator[exp.Expression]:
    """Yield a node and all nodes below it, without recursion, which would fail for deep ones."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += one.iter_expressions()


@dataclass(frozen=True)
class SqlPart:
    """A parsed part of a longer text, whose errors point into that text, and the functions of the user by name."""

    text: SqlText
    part: exp.Expression
    functions: Mapping[str, Any]
