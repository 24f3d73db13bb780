"""The proofs that a caller shows, and what they permit.

The nodes of a cluster decide themselves about the tokens that the gateway hands on. A gateway that
was given files of its own, or is a part of a node, also asks those. So a caller needs the
permission of both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from postroom.errors import AccessDenied
from postroom.gateway.failures import Unauthenticated

Roles: TypeAlias = Callable[[str | None, str], str]
"""Returns the role of a token (``None``: none) and the common name of a certificate.

It raises ``AccessDenied`` if the two have none.
"""

AUTHORIZATION: Final = "authorization"
BEARER: Final = "bearer "
READ: Final = "read"


class Caller(NamedTuple):
    """The caller of one call.

    Attributes:
        client: its name for limits: its token, its certificate, or its host.
        token: the token that it shows; ``None``: none.
        may_write: whether it may change something.
    """

    client: str
    token: str | None
    may_write: bool

    def check_may_write(self) -> None:
        """Check that it may change something.

        Raises:
            AccessDenied: it has the role ``read``.
        """
        if not self.may_write:
            raise AccessDenied(
                "this client has the role 'read', and only clients with the role \"write\" may "
                "change something; nothing was done: show a token, or a certificate, of that role"
            )


class Callers:
    """Reads the proofs of callers.

    Args:
        roles: the roles of tokens and certificates; ``None``: the gateway does not check them.
        is_secure: whether callers come by TLS.
        is_open: whether the store takes everybody, so that tokens mean nothing.
    """

    def __init__(self, roles: Roles | None, *, is_secure: bool, is_open: bool) -> None:
        self._roles = roles
        self._is_secure = is_secure
        self._is_open = is_open

    def of(self, context: Any) -> Caller:
        """Return the caller of a call.

        Raises:
            Unauthenticated: its token is in a wrong form, or not known to the gateway.
        """
        token = None if self._is_open else _token_of(context)
        name = _name_of(context) if self._is_secure else ""
        if token is not None:
            client = f"token {token}"
        elif name:
            client = f"certificate {name}"
        else:
            client = context.peer().rpartition(":")[0]
        return Caller(client, token, self._roles is None or self._role_of(token, name) != READ)

    def _role_of(self, token: str | None, name: str) -> str:
        assert self._roles is not None
        try:
            return self._roles(token, name)
        except AccessDenied as error:
            raise Unauthenticated(str(error)) from error


def _token_of(context: Any) -> str | None:
    for name, value in context.invocation_metadata():
        if name == AUTHORIZATION:
            if not value[: len(BEARER)].lower() == BEARER or not value[len(BEARER) :].strip():
                raise Unauthenticated(
                    'the metadata "authorization" is not "Bearer TOKEN"; nothing was done'
                )
            return str(value[len(BEARER) :].strip())
    return None


def _name_of(context: Any) -> str:
    names = context.auth_context().get("x509_common_name", ())
    return names[0].decode(errors="replace") if names else ""


__all__ = ["Caller", "Callers", "Roles"]
