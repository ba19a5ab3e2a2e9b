"""A custom class: imported by its name in a binding, checked, made with its options; its errors as sentences."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import traceback
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from penstock.bindings.secrets import resolve_settings
from penstock.bindings.types import PythonBinding
from penstock.connectors.record_log import RecordLog
from penstock.connectors.record_receiver import RecordReceiver, SourceGuarantee
from penstock.connectors.record_sink import RecordSink, SinkGuarantee
from penstock.errors import BindingError, ExternalSystemError, JobFailedError, PenstockError

__all__ = [
    "bind_class",
    "describe_guarantee",
    "import_class",
    "import_folder",
    "in_custom_class",
    "make_custom",
]

_MAX_REASON: Final = 300
_PARAMETERS: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def bind_class(binding: PythonBinding, *, is_sink: bool) -> PythonBinding:
    """Import the class of a binding, and return the binding with what the class states.

    Raises BindingError, which says what to do, when the class cannot be imported, is neither a source nor a
    sink, or does not take the options.
    """
    kind = import_class(binding)
    guarantee = _guarantee(binding, kind, is_sink=is_sink)
    if inspect.isabstract(kind):
        missing = ", ".join(sorted(kind.__abstractmethods__))
        raise BindingError(f"{_what(binding)} lacks the methods {missing}. Define them.")
    _arguments(binding, kind)
    source: Literal["log", "receiver"] = "log" if issubclass(kind, RecordLog) else "receiver"
    return dataclasses.replace(
        binding,
        kind="sink" if is_sink else source,
        guarantee=guarantee,
        origin=guarantee == "at least once with ids",
    )


def import_folder(binding: PythonBinding) -> str | None:
    """Return the folder of the import path that has the module of a class that was imported; None without a file."""
    module = importlib.import_module(binding.module)
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    path = Path(file).resolve()
    return str(path.parents[binding.module.count(".") + (path.name == "__init__.py")])


def make_custom(binding: PythonBinding) -> Any:
    """Return an object of the class of a binding that was checked, with the options as arguments."""
    found = import_class(binding)
    arguments = _arguments(binding, found)
    with in_custom_class(binding, "__init__"):
        return found(**arguments)


@contextmanager
def in_custom_class(binding: PythonBinding, method: str) -> Iterator[None]:
    """Turn errors of the user's class into ones that name it, the line and the remedy.

    An OSError, such as ConnectionError, says that the system behind the class is away.
    """
    try:
        yield
    except PenstockError as e:
        raise type(e)(f"{_what(binding)}: {_without_secrets(binding, str(e))}") from e
    except OSError as e:
        raise ExternalSystemError(
            f"{_what(binding)}: {method} failed ({_reason(binding, e)}). The system behind it does not answer, or "
            "refuses. Start the job again when it does."
        ) from e
    except Exception as e:  # a class of the user's may raise anything
        raise JobFailedError(
            f"{_what(binding)}: {method} failed ({_reason(binding, e)}). Correct the class, and start the job again; "
            "it continues from its checkpoint."
        ) from e


def describe_guarantee(binding: PythonBinding) -> str:
    """Return a sentence for the user about what a class states."""
    role = "Sink" if binding.kind == "sink" else "Stream"
    return f"{role} {binding.stream!r} is {binding.place}, which states: {binding.guarantee}."


def _what(binding: PythonBinding) -> str:
    role = "Sink" if binding.kind == "sink" else "Stream"
    return f"{role} {binding.stream!r}, {binding.place}" if binding.kind else binding.place


def import_class(binding: PythonBinding) -> Any:
    """Return the class that a binding names. Raises BindingError when there is none."""
    try:
        module = importlib.import_module(binding.module)
    except ModuleNotFoundError as e:
        if e.name is None or not f"{binding.module}.".startswith(f"{e.name}."):
            raise _not_imported(binding, e) from e
        raise BindingError(
            f"Stream {binding.stream!r} is bound to {binding.place}, but there is no module {e.name!r}. Put "
            f"{e.name.partition('.')[0]}.py beside the job file, or install it where the job starts and on every "
            "machine that has workers."
        ) from None
    except (Exception, SystemExit) as e:  # a module may raise anything
        raise _not_imported(binding, e) from e
    found = getattr(module, binding.name, None)
    if found is None:
        near = difflib.get_close_matches(binding.name, vars(module), 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise BindingError(f"The module {binding.module!r} has no class {binding.name!r}.{hint}")
    return found


def _not_imported(binding: PythonBinding, error: BaseException) -> BindingError:
    where = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    line = f"; {Path(where[-1].filename).name}, line {where[-1].lineno}" if where else ""
    return BindingError(
        f"Stream {binding.stream!r} is bound to {binding.place}, but the module {binding.module!r} cannot be imported "
        f"({_first_line(error)}{line}). Correct it."
    )


def _is_users(file: str) -> bool:
    return not file.startswith("<") and Path(__file__).parent != Path(file).parent and "importlib" not in file


def _guarantee(binding: PythonBinding, kind: Any, *, is_sink: bool) -> str:
    """Return what a class states. Raises BindingError when it is not of the kind that the binding needs."""
    bases = (RecordSink,) if is_sink else (RecordLog, RecordReceiver)
    if not inspect.isclass(kind) or not issubclass(kind, bases):
        wanted = " or ".join(f"penstock.connectors.{base.__name__}" for base in bases)
        raise BindingError(
            f"{binding.stream!r} is a {'sink' if is_sink else 'stream'}, but {binding.place} is not a class that "
            f"derives from {wanted}. Derive it from that, or name another class."
        )
    if issubclass(kind, RecordLog):
        return "each record once"
    allowed = typing.get_args(SinkGuarantee if is_sink else SourceGuarantee)
    if kind.guarantee not in allowed:
        raise BindingError(
            f"{binding.place} states the guarantee {kind.guarantee!r}, which is none of {', '.join(allowed)}."
        )
    return str(kind.guarantee)


def _arguments(binding: PythonBinding, kind: Any) -> dict[str, Any]:
    """Return the options as arguments of a class, converted as they are annotated."""
    known = _options_of(binding, kind)
    given = resolve_settings(binding.stream, binding.options)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise BindingError(
                f"{binding.place} has no option {name!r}; it has {', '.join(known) or 'none'}.{hint}"
            )
    missing = [
        name for name, one in known.items() if one.default is inspect.Parameter.empty and name not in given
    ]
    if missing:
        raise BindingError(
            f"{binding.place} needs the options {', '.join(missing)}: python:{binding.place}?{missing[0]}=VALUE."
        )
    return {name: _convert(binding, name, known[name].annotation, text) for name, text in given.items()}


def _options_of(binding: PythonBinding, kind: Any) -> Mapping[str, inspect.Parameter]:
    try:
        found = inspect.signature(kind, eval_str=True).parameters
    except (NameError, SyntaxError) as e:
        raise BindingError(
            f"The arguments of {binding.place} have annotations that cannot be read ({e})."
        ) from None
    wrong = next((name for name, one in found.items() if one.kind not in _PARAMETERS), None)
    if wrong is not None:
        raise BindingError(
            f"Options are the arguments of {binding.place}, each with its name, so it cannot have {wrong!r}. List the "
            "arguments."
        )
    return found


def _convert(binding: PythonBinding, name: str, annotation: Any, text: str) -> Any:
    """Return the value of an option, of the type that its argument is annotated with."""
    wanted = annotation
    if typing.get_origin(wanted) in (typing.Union, types.UnionType):
        several = [one for one in typing.get_args(wanted) if one is not type(None)]
        wanted = several[0] if len(several) == 1 else wanted
    if wanted in (inspect.Parameter.empty, str, Any):
        return text
    if typing.get_origin(wanted) is Literal:
        return _one_of(binding, name, typing.get_args(wanted), text)
    if wanted is bool:
        return _one_of(binding, name, ("true", "false"), text) == "true"
    if wanted not in (int, float, Path):
        raise BindingError(
            f"The argument {name!r} of {binding.place} is annotated with {annotation}. An option can be str, int, "
            "float, bool, Path or a Literal of texts."
        )
    try:
        return wanted(text)
    except ValueError:
        # As it was written: a reference may lead to a secret.
        raise BindingError(
            f"{binding.place} takes a number for {name}, not {binding.options[name]!r}."
        ) from None


def _one_of(binding: PythonBinding, name: str, allowed: tuple[Any, ...], text: str) -> str:
    if text not in allowed:
        raise BindingError(
            f"{binding.place} takes for {name} one of {', '.join(map(str, allowed))}, not {binding.options[name]!r}."
        )
    return text


def _reason(binding: PythonBinding, error: BaseException) -> str:
    """Return an error in one line, with the last line of the class's module that led to it."""
    file = getattr(importlib.import_module(binding.module), "__file__", None)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    place = f"; {Path(file).name}, line {lines[-1]}" if file and lines else ""
    return f"{_without_secrets(binding, _first_line(error))}{place}"


def _without_secrets(binding: PythonBinding, text: str) -> str:
    """Return a text in which the values of references are masked."""
    for name, value in resolve_settings(binding.stream, binding.options).items():
        if value and value != binding.options[name]:
            text = text.replace(value, "***")
    return text


def _first_line(error: BaseException) -> str:
    text = next(iter(str(error).strip().splitlines()), "")[:_MAX_REASON]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
