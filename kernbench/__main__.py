"""The `kernbench` command, `python -m kernbench` too; little is imported before an interrupt is handled."""

from __future__ import annotations

import signal
import sys
from typing import Any


def main() -> int:
    """Run the command line and return its exit status."""
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
    """End the process while it cleans up, which would print a traceback otherwise."""
    import os

    print("error: interrupted", file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
