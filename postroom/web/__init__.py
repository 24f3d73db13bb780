"""The pages of a store: a browser's view of it, and the same as JSON under ``/api``.

::

    browser ─▶ Guard (host, visitor, headers) ─▶ pages · JSON · actions
                                                  │
                                                reading: one coroutine for each page
                                                  │
                                                OpenStore: 2 s at most, a few reads at once
                                                  │
                                                the asyncio form of the store

A page and its JSON come from one coroutine in :mod:`.reading`, so that they cannot differ. Each
read has a limit, whatever the store contains. A part that does not answer in time is told as
unknown, with its reason, and the others are shown.

The package is written over the public interface: it imports :mod:`postroom`, :mod:`postroom.aio`
and :mod:`postroom.errors`, and nothing else of the package.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib.util import find_spec
from typing import TYPE_CHECKING

from postroom.errors import Error, how_to_install

if TYPE_CHECKING:
    from starlette.applications import Starlette

    import postroom
    import postroom.aio

_LIBRARIES = ("starlette", "jinja2")


def check_libraries() -> None:
    """Check that the libraries of the pages are there.

    Raises:
        Error: they are not.
    """
    if not all(map(find_spec, _LIBRARIES)):
        raise Error(f"the pages need more libraries: {how_to_install('web')}")


def app(
    db: postroom.Database | postroom.aio.Database,
    *,
    client_of: Callable[[str], tuple[str, str] | None] | None = None,
    payloads: bool = False,
    hosts: Collection[str] = (),
) -> Starlette:
    """Return the pages of a store as an ASGI application, to be mounted or served.

    Answers of an embedded store that is open in the synchronous form are waited for in threads:
    the pages never run on the loop that commits.

    Args:
        db: the store. It stays open: its opener closes it.
        client_of: returns the role of a token (``"none"``, ``"read"``, ``"write"``, ``"admin"``)
            and its name, or ``None``. Visitors then log in with a token, and may do what its role
            and the grants to its name allow; ``db`` must be an administrator's. Without it each
            visitor may do everything: the application that mounts the pages decides who reaches
            them.
        payloads: whether values and payloads are shown. Only one who may administer everything
            sees them otherwise, and nobody does if ``client_of`` is not given.
        hosts: the names by which browsers may reach the pages. It keeps out pages of others whose
            name leads here (DNS rebinding). Empty: any.

    Raises:
        Error: the libraries of the extra ``web`` are not installed.
    """
    check_libraries()
    from postroom.web.application import make  # noqa: PLC0415 - slow to load

    return make(db, client_of=client_of, payloads=payloads, hosts=hosts)


__all__ = ["app", "check_libraries"]
