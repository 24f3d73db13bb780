"""The opening of a store in this process, with the calls of the layers."""

from __future__ import annotations

from postroom.databases import asynchronous, synchronous
from postroom.server import embedded

open = synchronous.layered(embedded.open)  # noqa: A001 - a public name, as of files
open_async = asynchronous.layered(embedded.open_async)
