"""An extension of griffe that documents synchronous forms as what they are made from.

The synchronous classes have lines such as ``get = blocking(asynchronous.Database.get)``. griffe
reads them as attributes. This extension makes methods of them: with the arguments and the
documentation of the asyncio form, and the result type of the synchronous one.

It makes functions of lines such as ``open = layered(embedded.open)`` as well.
"""

from __future__ import annotations

import importlib
import re
from typing import Any, Final

import griffe

MAKERS: Final = frozenset(
    {
        "blocking",
        "blocking_in",
        "closable",
        "closable_own",
        "entering",
        "indexing",
        "iterating",
        "iterating_own",
        "owning",
    }
)
"""The functions of ``postroom.client.blocking``, and of layers, that make a synchronous form."""

_ITERATOR: Final = re.compile(
    r"^(?:AsyncGenerator|AsyncIterator|Stream)\[(.*?)(?:, None)?\]$", re.DOTALL
)
_INTERNAL: Final = re.compile(r"\b(?:blocking|asynchronous)\.")
_ROLE: Final = re.compile(r":(?:meth|func|class|mod|data|attr|obj):`[.~]*([^`]+)`")


class SyncForms(griffe.Extension):
    """The extension: see the module."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Make methods of all synchronous forms, and plain code of Sphinx's roles."""
        del kwargs
        modules = list(_modules(pkg))
        for module in modules:
            _complete_layered(pkg, module)
        classes: list[griffe.Class] = []
        for each in [each for module in modules for each in module.members.values()]:
            if each.is_alias:
                continue
            if each.is_class:
                _complete(pkg, each)
                classes.append(each)
            _tell_plainly(pkg, each)
        for each in classes:
            _remove_internals(each)


def _modules(module: griffe.Module) -> Any:
    yield module
    for each in module.members.values():
        if not each.is_alias and each.is_module:
            yield from _modules(each)


def _complete(pkg: griffe.Module, found: griffe.Class) -> None:
    for name, member in list(found.members.items()):
        if member.is_alias or not member.is_attribute:
            continue
        maker = member.value
        if isinstance(maker, griffe.ExprCall) and str(maker.function) in MAKERS:
            made_from = pkg[maker.arguments[0].canonical_path.removeprefix("postroom.")]
            found.set_member(name, _sync_form(name, made_from, found, member))


def _complete_layered(pkg: griffe.Module, module: griffe.Module) -> None:
    """Make functions of lines such as ``open = layered(embedded.open)``."""
    for name, member in list(module.members.items()):
        if member.is_alias or not member.is_attribute:
            continue
        maker = member.value
        if isinstance(maker, griffe.ExprCall) and _is_layered(maker):
            made_from = pkg[maker.arguments[0].canonical_path.removeprefix("postroom.")]
            made = _sync_form(name, made_from, module, member)
            made.labels |= made_from.labels
            made.returns = "Database"
            module.set_member(name, made)


def _is_layered(maker: griffe.ExprCall) -> bool:
    return str(maker.function).rpartition(".")[2] == "layered"


def _sync_form(
    name: str, made_from: griffe.Function, parent: griffe.Object, line: griffe.Attribute
) -> griffe.Function:
    returned = None if made_from.returns is None else str(made_from.returns)
    iterator = returned and _ITERATOR.match(returned)
    return griffe.Function(
        name,
        lineno=line.lineno,
        endlineno=line.endlineno,
        parameters=made_from.parameters,
        returns=f"Iterator[{iterator[1]}]" if iterator else made_from.returns,
        docstring=made_from.docstring,
        parent=parent,
    )


def _tell_plainly(pkg: griffe.Module, found: griffe.Object) -> None:
    """Show the values of constants as defaults, and types by the names that users know."""
    if found.is_class:
        for member in found.members.values():
            if not member.is_alias:
                _tell_plainly(pkg, member)
    elif found.is_attribute:
        found.annotation = _plain_type(pkg, found.annotation)
    elif found.is_function:
        for parameter in found.parameters:
            parameter.annotation = _plain_type(pkg, parameter.annotation)
            if isinstance(parameter.default, griffe.ExprName):
                parameter.default = _constant(parameter.default)
        if _INTERNAL.search(str(found.returns)):
            found.returns = _INTERNAL.sub("", str(found.returns))


def _plain_type(pkg: griffe.Module, annotation: Any) -> Any:
    """Return a type with what our aliases stand for, such as ``Due``, in place of these."""
    if not isinstance(annotation, griffe.Expr):
        return annotation
    told = str(annotation)
    for name in annotation.iterate(flat=True):
        if isinstance(name, griffe.ExprName):
            meaning = _meaning(pkg, name.canonical_path)
            if meaning:
                told = re.sub(rf"(?:\b\w+\.)?\b{name.name}\b", lambda _, text=meaning: text, told)
    return annotation if told == str(annotation) else told


def _meaning(pkg: griffe.Module, path: str) -> str:
    """Return what the alias of a type stands for; empty: it is none of ours."""
    if not path.startswith("postroom."):
        return ""
    try:
        found = pkg[path.removeprefix("postroom.")]
        found = found.final_target if found.is_alias else found
    except (KeyError, griffe.GriffeError):
        return ""
    value = str(found.value) if found.is_attribute else ""
    if value.startswith("Annotated["):
        return value.removeprefix("Annotated[").partition(",")[0]
    value = value.replace("datetime.", "")
    return value if " | " in value or value.startswith("Literal[") else ""


def _constant(name: griffe.ExprName) -> Any:
    """Return the value of a constant as text; the name itself, if it is something else."""
    module, _, constant = name.canonical_path.rpartition(".")
    if not module.startswith("postroom"):
        return name
    value = getattr(importlib.import_module(module), constant, None)
    return repr(value) if isinstance(value, int | float | str) else name


def _remove_internals(found: griffe.Class) -> None:
    """Remove members that are for layers on top, and constructors that users do not call."""
    for name, member in list(found.members.items()):
        if not member.is_alias and _mentions(member, "for layers on top"):
            found.del_member(name)
    if "__init__" in found.members and not _mentions(found, "args:"):
        found.del_member("__init__")


def _mentions(found: griffe.Object, text: str) -> bool:
    return found.docstring is not None and text in " ".join(found.docstring.value.split()).lower()


class PlainRoles(griffe.Extension):
    """An extension that shows Sphinx's roles as code."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the roles of one docstring."""
        del kwargs
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(r"`\1`", obj.docstring.value)
