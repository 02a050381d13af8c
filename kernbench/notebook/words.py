"""Why a run took as long, as a short ranked list in words."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernbench.analysis.why import Reason, Why

SHOWN = 4
_VERBS = {
    "memory": "reading and writing", "serialization": "bytes over bandwidth", "queueing": "waiting for others",
    "slot": "slots of queues", "wire": "the length of the wire",
    "nodes": "passing through", "matrix": "products", "vector": "vector work",
}  # fmt: skip


def sentence(reason: Reason) -> str:
    """Return one reason as a sentence or two."""
    others = f" and {reason.others} more" if reason.others else ""
    spent = ", ".join(_VERBS.get(kind, kind) for kind in reason.kind.split(", "))
    advice = reason.advice()
    todo = f" To shorten it, {advice}." if advice else ""
    return (
        f"{reason.share:.0%} of the time, {reason.ns:,.1f} ns: {reason.what} {reason.resource}{others} ({spent}).{todo}"
    )


def why_html(why: Why) -> str:
    """Return the first reasons in words; then all of them as a table, with the limits that steps waited for below."""
    items = "".join(f"<li>{escape(sentence(reason))}</li>" for reason in why.reasons[:SHOWN])
    return f'<ol class="kb-reasons">{items}</ol>{why._repr_html_()}'
