"""Runs widenet_jax/cli/launch_tpu.py; --help shows how."""

from widenet_jax.cli.launch_tpu import main

if __name__ == "__main__":
    raise SystemExit(main())
