"""Runs widenet_jax/cli/prepare_data.py; --help shows how."""

from widenet_jax.cli.prepare_data import main

if __name__ == "__main__":
    raise SystemExit(main())
