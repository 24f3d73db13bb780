"""An extension of griffe that documents synchronous forms as what they are made from.

The synchronous classes have lines such as ``get = blocking(asynchronous.Database.get)``. griffe
reads them as attributes. This extension makes methods of them: with the arguments and the
documentation of the asyncio form, and the result type of the synchronous one.
"""

from __future__ import annotations

import re
from typing import Any, Final

import griffe

MAKERS: Final = frozenset(
    {
        "blocking",
        "blocking_in",
        "closable",
        "closable_own",
        "iterating",
        "iterating_own",
        "owning",
    }
)
"""The functions of ``postroom.client.blocking`` that make a synchronous form."""

_ITERATOR: Final = re.compile(
    r"^(?:AsyncGenerator|AsyncIterator|Stream)\[(.*?)(?:, None)?\]$", re.DOTALL
)
_ROLE: Final = re.compile(r":(?:meth|func|class|mod|data|attr|obj):`[.~]*([^`]+)`")


class SyncForms(griffe.Extension):
    """The extension: see the module."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Make methods of all synchronous forms, and plain code of Sphinx's roles."""
        del kwargs
        for module in list(_modules(pkg)):
            for each in list(module.members.values()):
                if not each.is_alias and each.is_class:
                    _complete(pkg, each)


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


def _sync_form(
    name: str, made_from: griffe.Function, parent: griffe.Class, line: griffe.Attribute
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


class PublicDocstrings(griffe.Extension):
    """An extension that leaves out what is for layers on top, and shows Sphinx's roles as code."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Treat one object that has a docstring."""
        del kwargs
        if obj.docstring is None:
            return
        obj.docstring.value = _ROLE.sub(r"`\1`", obj.docstring.value)
        if "for layers on top" in " ".join(obj.docstring.value.split()).lower():
            obj.public = False
