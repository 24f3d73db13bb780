"""The list of commands, and the exit codes of their errors.

=====  =====================================================================
code   meaning
=====  =====================================================================
0      done
1      failed; standard error says why in one line
2      wrong usage
130    interrupted (Ctrl-C)
=====  =====================================================================

A reader that closes its end of a pipe early (``postroom scan ... | head``) ends the command
quietly, with 1: not everything was printed.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import postroom
from postroom.cli import (
    access,
    backup,
    cluster,
    gateway,
    mail,
    measure,
    pipeline,
    queues,
    ranges,
    recovery,
    serve,
    settings,
    state,
    tour,
    trace,
    values,
    web,
    work,
)
from postroom.cli.options import flowing, with_option_names
from postroom.errors import Error

NEGATIVE_NUMBERS = {"ignore_unknown_options": True}
"""An argument may begin with a minus."""
HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
"""Subcommands inherit these names from their group."""


class Commands(TyperGroup):
    """The group of all commands. It alone knows what an error looks like on a terminal."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command; turn an error raised on purpose into one line and a code."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _forget_standard_output()
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except (Error, OSError) as error:
            typer.echo(f"postroom: {_one_line(error)}", err=True)
            raise typer.Exit(1) from None
        return result


def _one_line(error: Exception) -> str:
    said = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename:
        said = f"{error.strerror}: {error.filename!r}"  # without its number
    return " ".join(with_option_names(said).split()) or type(error).__name__


def _forget_standard_output() -> None:
    """Let the interpreter's last flush go nowhere. Otherwise it would report the closed pipe."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


app = typer.Typer(
    cls=Commands,
    help="A transactional key-value store: every key has an inbox, every transaction an outbox.",
    context_settings=HELP_OPTIONS,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"postroom {postroom.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version, and end."
        ),
    ] = False,
) -> None:
    del version


for each in (
    tour.demo, serve.serve, cluster.cluster, gateway.gateway, web.web,
    state.status, state.remove_node, state.rebind_node, state.forget_position,
    values.get, values.put, values.delete, values.increment, values.scan, values.watch,
    values.accounting, access.audit_log,
    trace.trace,
    mail.send, mail.peek, mail.reap, mail.bury, mail.inboxes, mail.scheduled, mail.cancel,
    mail.dead_letters, values.search, work.worker, measure.bench,
    backup.backup, backup.verify, backup.restore, recovery.recover,
):  # fmt: skip
    context = NEGATIVE_NUMBERS if each is values.increment else None
    name = each.__name__.replace("_", "-")
    app.command(name, context_settings=context, help=flowing(each))(each)
app.add_typer(access.app, name="access")
app.add_typer(queues.app, name="queue")
app.add_typer(ranges.app, name="range")
app.add_typer(settings.app, name="settings")
app.add_typer(pipeline.app, name="pipeline")
