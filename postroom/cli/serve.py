"""The command serve: a node, alone or of a cluster, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random  # noqa: TID251 - here an instance is made, to be passed in
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import typer

from postroom import limits
from postroom.cli import gateway
from postroom.cli.notifying import READY, STOPPING, notify
from postroom.cli.output import as_bytes, as_split_bytes
from postroom.kv.clock import SystemClock
from postroom.kv.engine_folder import ENGINES, EngineName
from postroom.limits import MEMORY_BYTES, MEMORY_BYTES_MIN
from postroom.ranges.settings import SETTINGS, SPLIT_BYTES, SPLIT_LOAD
from postroom.server.local_cluster import check_no_local_cluster

if TYPE_CHECKING:
    from postroom.server.cluster.security import Security
    from postroom.server.cluster.serving import CompanionService, NodeSettings, ServedNode

    MakeCompanion: TypeAlias = Callable[[ServedNode], CompanionService]

STANDARD_INPUT = 0
INPUT_BYTES = 4096

_log = logging.getLogger(__name__)

DataFolder = Annotated[
    Path,
    typer.Option(
        "--path", "--data", metavar="DIR", help="The node's data folder; created if missing."
    ),
]
Listen = Annotated[
    str, typer.Option("--listen", metavar="HOST:PORT", help="Listen at this address.")
]
JoinList = Annotated[
    str | None,
    typer.Option(
        "--join",
        metavar="HOST:PORT,...",
        help="The first nodes' addresses, the same list on each of them; a later node names any.",
        show_default="a node of its own",
    ),
]
Advertise = Annotated[
    str | None,
    typer.Option(
        "--advertise",
        metavar="HOST:PORT",
        help="Tell other nodes this address of the node, if not --listen.",
    ),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="No TLS and no tokens: anybody may do anything.")
]
TlsCa = Annotated[
    Path | None, typer.Option("--tls-ca", metavar="FILE", help="The authority's certificate, PEM.")
]
TlsCertificate = Annotated[
    Path | None,
    typer.Option("--tls-certificate", metavar="FILE", help="This node's certificate, PEM."),
]
TlsKey = Annotated[
    Path | None, typer.Option("--tls-key", metavar="FILE", help="The key of that certificate, PEM.")
]
Engine = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        help="Open a new folder with leveldb or rocksdb.",
        show_default="the one that is installed",
    ),
]
Memory = Annotated[
    str,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="The budget of memory for the store of the node.",
    ),
]
SplitBytes = Annotated[
    str | None,
    typer.Option(
        "--split-bytes",
        metavar="SIZE",
        help="In a new store: split larger ranges; 0: never.",
        show_default=f"{limits.SPLIT_BYTES >> 20}MiB",
    ),
]
SplitLoad = Annotated[
    float | None,
    typer.Option(
        "--split-load",
        metavar="PROCESSORS",
        help="In a new store: split ranges that take more of a processor; 0: never.",
        show_default=f"{limits.SPLIT_LOAD:g}",
    ),
]
Slow = Annotated[
    float | None,
    typer.Option(
        "--slow",
        metavar="SECONDS",
        min=0,
        help="Log commits and locks that take SECONDS, and all conflicts.",
        show_default=False,
    ),
]
Grpc = Annotated[
    str | None,
    typer.Option(
        "--grpc", metavar="HOST:PORT", help="Also listen here for gRPC, for other languages."
    ),
]
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics", metavar="HOST:PORT", help="Serve metrics for Prometheus here, to anybody."
    ),
]
StopAtEndOfInput = Annotated[
    bool,
    typer.Option(
        "--stop-at-end-of-input",
        help="Stop, as on SIGTERM, when the pipe at standard input ends.",
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Log more.")]


def serve(
    path: DataFolder,
    listen: Listen,
    join: JoinList = None,
    advertise: Advertise = None,
    insecure: Insecure = False,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    token_file: gateway.TokenFile = None,
    role_file: gateway.RoleFile = None,
    engine: Engine = None,
    memory: Memory = f"{MEMORY_BYTES >> 20}MiB",
    split_bytes: SplitBytes = None,
    split_load: SplitLoad = None,
    slow: Slow = None,
    grpc: Grpc = None,
    metrics: Metrics = None,
    stop_at_end_of_input: StopAtEndOfInput = False,
    verbose: Verbose = False,
) -> None:
    """Serve the store in a folder until SIGTERM or Ctrl-C: alone, or as a node of a cluster.

    Without --join it is a node of its own. The first nodes of a larger cluster, each started with
    the same --join list, form it by themselves.
    Standard error says "ready" and the address once the node serves.
    """
    with _signals_kept() as early:
        from postroom.server.cluster.serving import NodeSettings  # noqa: PLC0415 - slow to load

        _log_to_standard_error(verbose=verbose)
        if stop_at_end_of_input and not _input_is_a_pipe():
            raise typer.BadParameter("--stop-at-end-of-input needs a pipe as standard input")
        check_no_local_cluster(path)
        security = _security(
            insecure, _TlsFiles(tls_ca, tls_certificate, tls_key), token_file, role_file
        )
        address = _address(advertise or listen, "--advertise" if advertise else "--listen")
        settings = NodeSettings(
            folder=path,
            listen=_address(listen, "--listen", wildcard=True),
            address=address,
            first_addresses=(address,) if join is None else _first_addresses(join),
            security=security,
            engine=_engine(engine),
            memory_bytes=as_bytes(memory, MEMORY_BYTES_MIN, "--memory"),
            first_words=_first_words(split_bytes, split_load),
            slow_seconds=slow,
        )
        companions: list[MakeCompanion] = []
        if grpc is not None:
            gateway.prepare()
            grpc = gateway.checked_address(grpc, "--grpc")
            gateway.check_free(grpc)
            files = (tls_ca, tls_certificate, tls_key)
            made = gateway.NodeGateway(grpc, settings, files)
            companions.append(lambda _: made)
        if metrics is not None:
            metrics = gateway.checked_address(metrics, "--metrics")
            gateway.check_free(metrics)
            companions.append(_metrics_at(metrics))
        asyncio.run(_run(settings, early, companions, stop_at_end_of_input=stop_at_end_of_input))


def _first_words(split_bytes: str | None, split_load: float | None) -> dict[str, float]:
    words: dict[str, float] = {}
    if split_bytes is not None:
        words[SPLIT_BYTES] = as_split_bytes(split_bytes)
    if split_load is not None:
        words[SPLIT_LOAD] = split_load
        if not SETTINGS[SPLIT_LOAD].takes(split_load):
            raise typer.BadParameter(
                f"{split_load:g} is not in the range: {SETTINGS[SPLIT_LOAD].range}",
                param_hint="--split-load",
            )
    return words


def _metrics_at(address: str) -> MakeCompanion:
    from postroom.metrics.collector import (  # noqa: PLC0415 - needs a library
        ServedStore,
        StoreCollector,
    )
    from postroom.metrics.endpoint import Endpoint  # noqa: PLC0415 - needs a library

    return lambda node: Endpoint(address, StoreCollector(ServedStore(node)))


def _engine(name: str | None) -> EngineName | None:
    for engine in ENGINES:
        if engine == name:
            return engine
    if name is None:
        return None
    raise typer.BadParameter(f"{name!r} is none of {', '.join(ENGINES)}", param_hint="--engine")


def _input_is_a_pipe() -> bool:
    """Return whether standard input is a pipe, whose end stops the node.

    The end of other files says nothing (service managers give /dev/null), or cannot be waited for.
    """
    try:
        return stat.S_ISFIFO(os.fstat(STANDARD_INPUT).st_mode)
    except OSError:  # standard input is closed
        return False


@contextlib.contextmanager
def _signals_kept() -> Iterator[list[int]]:
    """Keep the first signal until the node can be stopped: some imports lose what is raised."""
    early: list[int] = []

    def keep(number: int, frame: object) -> None:
        if early:
            raise KeyboardInterrupt
        early.append(number)

    before = {number: signal.signal(number, keep) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield early
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _run(
    settings: NodeSettings,
    early: list[int],
    companions: list[MakeCompanion],
    *,
    stop_at_end_of_input: bool,
) -> None:
    loop = asyncio.get_running_loop()
    started: list[ServedNode] = []
    # Before the node is built, which takes a while: a signal would otherwise cancel what it awaits
    # first. A handler runs when the node awaits.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, loop, started)
    from postroom.server.cluster.serving import ServedNode  # noqa: PLC0415 - slow to load

    address = settings.address
    randomness = random.Random(random.SystemRandom().randbytes(32))
    node = ServedNode(settings, SystemClock(), randomness)  # on the loop, which its server needs
    node.companions += [make(node) for make in companions]
    started.append(node)
    if early:
        _stop(loop, started)
    if stop_at_end_of_input:
        os.set_blocking(STANDARD_INPUT, False)  # several nodes may read one pipe
        loop.add_reader(STANDARD_INPUT, _on_input, loop, started)
    await node.run(lambda: _tell_ready(address))


def _tell_ready(address: str) -> None:
    print(f"ready {address}", file=sys.stderr, flush=True)  # noqa: T201
    notify(READY)


def _stop(loop: asyncio.AbstractEventLoop, started: list[ServedNode]) -> None:
    """Stop the node: in good order at the first signal, at once at the second one."""
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
    notify(STOPPING)
    for node in started:
        node.stop()


def _on_input(loop: asyncio.AbstractEventLoop, started: list[ServedNode]) -> None:
    """Stop the node at the end of standard input, and ignore what comes before."""
    try:
        ended = not os.read(STANDARD_INPUT, INPUT_BYTES)
    except BlockingIOError:  # another node was faster
        return
    if ended:
        loop.remove_reader(STANDARD_INPUT)
        _log.info("standard input has ended: the node stops")
        _stop(loop, started)


class _TlsFiles(NamedTuple):
    ca: Path | None
    certificate: Path | None
    key: Path | None


def _security(
    insecure: bool, files: _TlsFiles, token_file: Path | None, role_file: Path | None
) -> Security:
    from postroom.server.cluster.access import (  # noqa: PLC0415 - slow to load
        Tokens,
        roles_of_certificates,
        warn_if_others_may_read,
    )
    from postroom.server.cluster.security import (  # noqa: PLC0415 - slow to load
        Certificates,
        Security,
    )

    if insecure:
        if any(files) or token_file or role_file:
            raise typer.BadParameter("--insecure switches TLS and tokens off: give it alone")
        return Security(None)
    if token_file and role_file:
        raise typer.BadParameter(
            "--token-file and --role-file: give one of them, a token's role stands beside it"
        )
    ca, certificate, key = files
    if ca is None or certificate is None or key is None:
        raise typer.BadParameter(
            "give --tls-ca, --tls-certificate and --tls-key; or --insecure, to let anybody in"
        )
    warn_if_others_may_read(key)
    tokens = None if token_file is None else Tokens(token_file)
    roles = None if role_file is None else roles_of_certificates(role_file)
    return Security(Certificates(ca, certificate, key), tokens, roles)


def _first_addresses(join: str) -> tuple[str, ...]:
    found = tuple(_address(each, "--join") for each in join.split(",") if each.strip())
    if not found:
        raise typer.BadParameter(
            "give at least one HOST:PORT; a node of its own does without", param_hint="--join"
        )
    return found


def _address(text: str, option: str, *, wildcard: bool = False) -> str:
    address = gateway.checked_address(text, option)
    host, _, port = address.rpartition(":")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise typer.BadParameter(
            f"{text!r} is no HOST:PORT: write an IPv6 address in brackets, [{host}]:{port}",
            param_hint=option,
        )
    if not wildcard and host in {"0.0.0.0", "[::]"}:
        raise typer.BadParameter(
            f"no other node can reach {host}: add --advertise with its own address",
            param_hint=option,
        )
    return address


def _log_to_standard_error(*, verbose: bool) -> None:
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("asyncio").setLevel(logging.WARNING)
