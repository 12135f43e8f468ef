"""Runs widenet_jax/cli/reproduce.py; --help shows how."""

from widenet_jax.cli.reproduce import main

if __name__ == "__main__":
    raise SystemExit(main())
