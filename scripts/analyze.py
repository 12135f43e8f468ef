"""Runs widenet_jax/cli/analyze.py; --help shows how."""

from widenet_jax.cli.analyze import main

if __name__ == "__main__":
    raise SystemExit(main())
