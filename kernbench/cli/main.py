"""`kernbench`: the group of commands, and the format of errors."""

from __future__ import annotations

import os
import secrets
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import click

from kernbench import _engine_selection
from kernbench._interrupts import wait_for_pending
from kernbench.cli._choose import ccl, gemm
from kernbench.cli._fidelity import calibrate_command, fidelity_command
from kernbench.cli._machine import list_, new, show, validate
from kernbench.cli._milestone import milestone
from kernbench.cli._options import echo, echo_json, error_record, json_option
from kernbench.cli._probe import probe
from kernbench.cli._run import run
from kernbench.cli._saved_runs import compare_command, report_command, why_command
from kernbench.cli._sweep import cache, sweep_command
from kernbench.errors import ArgumentError, ConfigError, KernbenchError

port_option = click.option("--port", type=click.IntRange(1, 65535), help="Port on this machine.")
browser_option = click.option("--no-browser", is_flag=True, help="Only serve; open no browser.")


@click.command(short_help="Open JupyterLab on the explorer.")
@port_option
@browser_option
@json_option
def lab(port: int | None, no_browser: bool, as_json: bool) -> None:
    """Open JupyterLab on copies of the notebooks, in the folder lab; edits are kept there. Stop it with Ctrl-C.

    The folder is in the checkout or, where kernbench is installed without one, here.
    """
    from kernbench.notebook._serve import copy_notebooks, lab_arguments, notebook

    folder = copy_notebooks(notebook().parents[1])
    arguments = lab_arguments(folder, port, not no_browser)
    if as_json:
        echo_json({"folder": str(folder)})
    from jupyterlab.labapp import LabApp

    LabApp.launch_instance(arguments)


@click.command(short_help="Serve the explorer alone as a page, on this machine.")
@port_option
@browser_option
@click.option("--token", help="The token that visitors need. Default: a random one.")
@click.option("--theme", type=click.Choice(["light", "dark"]), default="light", help="Colours of the page.")
@json_option
def web(port: int | None, no_browser: bool, token: str | None, theme: str, as_json: bool) -> None:
    """Serve the explorer alone, on loopback and behind a token; visitors cannot run code. Needs [web]."""
    from kernbench.notebook._serve import serve_page, web_arguments

    token, port = token or secrets.token_urlsafe(24), port or 8866
    arguments = web_arguments(token, port, not no_browser, theme)
    url = f"http://127.0.0.1:{port}/?token={token}"
    echo_json({"url": url}) if as_json else click.echo(url)
    serve_page(arguments)


@click.command(short_help="Print what makes a shell complete commands and options with Tab.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash: eval "$(kernbench completion bash)"    # in ~/.bashrc
    zsh:  eval "$(kernbench completion zsh)"     # in ~/.zshrc
    fish: kernbench completion fish | source     # in ~/.config/fish/config.fish
    """  # noqa: D301 - \b keeps click from wrapping the list
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(cli, {}, "kernbench", "_KERNBENCH_COMPLETE").source())


_OK, _FAILED, BAD_INPUT = 0, 1, 2


def _version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        click.echo(f"kernbench {version('kernbench')}, engine {_engine_selection.engine()}")
        context.exit()


class _Commands(click.Group):
    """The commands. A closed output pipe, as `head` leaves it, is a success."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            status = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            try:
                click.echo()  # fails as well, unless it was another pipe
            except BrokenPipeError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return _OK
            raise
        return status


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="On an error, show the Python traceback as well.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show version and engine."
)
def cli(debug: bool) -> None:
    """Simulate AI accelerators: change the machine or the kernel, and see what it does to latency, and why.

    Exit status: 0 all right, 1 a run failed, 2 a wrong command line or configuration.

    With --json, stdout has one JSON document. An error is {"error": {"message", "file", "key", "value", "remedy"}}, in
    which null is what is not known.
    """


for command in (
    run,
    why_command,
    compare_command,
    report_command,
    gemm,
    ccl,
    list_,
    milestone,
    fidelity_command,
    calibrate_command,
    probe,
    sweep_command,
    cache,
    show,
    validate,
    new,
    lab,
    web,
    completion,
):
    cli.add_command(command)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; errors are lines on stderr, or with --json JSON on stdout."""
    args = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        _show_warnings()
        if "" not in sys.path:
            sys.path.insert(0, "")  # as python -m kernbench does: modules named in files are searched there
    try:
        status = cli.main(args, prog_name="kernbench", standalone_mode=False)
        wait_for_pending()
    except click.ClickException as error:
        if "--json" in args:
            echo_json({"error": error_record(error, error.format_message())})
        else:
            error.show()
        return BAD_INPUT
    except ConfigError as error:
        return _fail(error, args, error.faults, BAD_INPUT)
    except ArgumentError as error:
        return _fail(error, args, str(error).splitlines(), BAD_INPUT)
    except (KernbenchError, OSError) as error:
        return _fail(error, args, str(error).splitlines(), _FAILED)
    except (click.Abort, KeyboardInterrupt) as error:
        return _fail(error, args, ["interrupted"], _FAILED)
    except Exception as error:  # noqa: BLE001 - whatever a bench raises
        hint = "" if "--debug" in args else "; kernbench --debug ... shows where"
        return _fail(error, args, [f"{type(error).__name__}: {error}{hint}"], _FAILED)
    return status if isinstance(status, int) else _OK


def _show_warnings() -> None:
    """Show warnings of the package as lines, each once; others as Python does."""
    package, shown, others = Path(__file__).parents[1], set[str](), warnings.showwarning

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
        line: str | None = None,
    ) -> None:  # fmt: skip
        if not Path(filename).is_relative_to(package):
            others(message, category, filename, lineno, file, line)
        elif str(message) not in shown:
            shown.add(str(message))
            echo(f"warning: {message}", err=True)

    warnings.showwarning = show


def _fail(error: BaseException, args: list[str], lines: list[str], status: int) -> int:
    if "--debug" in args:
        traceback.print_exception(error)
    if "--json" in args:
        echo_json({"error": error_record(error, "\n".join(lines))})
    else:
        for line in lines or [type(error).__name__]:
            echo(f"error: {line}", err=True)
    return status
