#!/usr/bin/env python3
"""Trains on a Cloud TPU: from making it to deleting it; --help shows how."""

import sys
from functools import partial

from widenet_jax.cli.parser import exit_code_of
from widenet_jax.tools.launch.command import main

if __name__ == "__main__":
    sys.exit(exit_code_of(partial(main, sys.argv[1:])))
