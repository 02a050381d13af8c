"""`kernbench lab` and `kernbench web`: the explorer in JupyterLab, or alone in a page."""

from __future__ import annotations

import secrets

import click

port_option = click.option("--port", type=click.IntRange(1, 65535), help="Port on this machine.")
browser_option = click.option("--no-browser", is_flag=True, help="Only serve; open no browser.")


@click.command(short_help="Open JupyterLab on the explorer.")
@port_option
@browser_option
def lab(port: int | None, no_browser: bool) -> None:
    """Open JupyterLab on copies of the notebooks, in the folder lab; edits are kept there. Stop it with Ctrl-C."""
    from kernbench.notebook.serve import copy_notebooks, lab_arguments, notebook

    arguments = lab_arguments(copy_notebooks(notebook().parents[1]), port, not no_browser)
    from jupyterlab.labapp import LabApp

    LabApp.launch_instance(arguments)


@click.command(short_help="Serve the explorer alone as a page, on this machine.")
@port_option
@browser_option
@click.option("--token", help="The token that visitors need. Default: a random one.")
@click.option("--theme", type=click.Choice(["light", "dark"]), default="light", help="Colours of the page.")
def web(port: int | None, no_browser: bool, token: str | None, theme: str) -> None:
    """Serve the explorer alone, on loopback and behind a token; visitors cannot run code. Needs [web]."""
    from kernbench.notebook.serve import serve_page, web_arguments

    token, port = token or secrets.token_urlsafe(24), port or 8866
    arguments = web_arguments(token, port, not no_browser, theme)
    click.echo(f"http://127.0.0.1:{port}/?token={token}")
    serve_page(arguments)
