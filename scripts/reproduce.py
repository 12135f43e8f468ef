#!/usr/bin/env python3
"""The paper's tables and figures as commands; --help shows how."""

import sys
from functools import partial

from widenet_jax.cli.parser import exit_code_of
from widenet_jax.tools.reproduce.command import main

if __name__ == "__main__":
    sys.exit(exit_code_of(partial(main, sys.argv[1:])))
