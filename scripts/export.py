"""Runs widenet_jax/cli/export.py; --help shows how."""

from widenet_jax.cli.export import main

if __name__ == "__main__":
    raise SystemExit(main())
