"""`python -m kernbench`: the same as the `kernbench` command."""

from __future__ import annotations

import sys

from kernbench.cli.main import main

sys.exit(main())
