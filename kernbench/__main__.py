"""The `kernbench` command, also as `python -m kernbench`; little is imported before interrupts are handled."""

from __future__ import annotations

import signal
import sys
from typing import Any


def main() -> int:
    try:
        from kernbench._interrupts import handle_interrupts

        handle_interrupts()
        from kernbench.cli.main import main

        return main()
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 1
    finally:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, _end)


def _end(*_: Any) -> None:
    """Exit on an interrupt during cleanup, which would print a traceback."""
    import os

    print("error: interrupted", file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
