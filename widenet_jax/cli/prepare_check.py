"""The subcommand `check` of `prepare_data.py`: names images that cannot be read."""

from typing import Any

from widenet_jax.cli.parser import Options, show
from widenet_jax.errors import BadInputError


def add_check(commands: Any) -> None:
    """Adds the subcommand that names unreadable images."""
    text = "decode every image under a folder and name those that cannot be read"
    command = commands.add_parser("check", help=text, description=text, takes_fields=False)
    command.set_defaults(work=check)
    command.add_argument("folder", metavar="DIR")
    command.add_argument("--json", action="store_true", help="print one JSON object")


def check(options: Options) -> None:
    """Prints a line for each file that training would not read.

    Raises:
      BadInputError: some images cannot be read.
    """
    from widenet_jax.data.chunks import FEW_BAD, FEW_BAD_SHARE
    from widenet_jax.data.images.folders import left_out_text
    from widenet_jax.data.prepare.check_images import check_images

    found = check_images(options.folder)
    lines = [*found.unreadable, *(f"{path}: left out ({kind})" for path, kind in found.left_out)]
    lines += [f"{path}: an empty folder" for path in found.empty]
    bad = len(found.unreadable)
    text = f"{options.folder}: {found.images:,} images, {bad:,} of them unreadable"
    if found.left_out:
        text += f"; {left_out_text(found.counts)}"
    facts = {**found._asdict(), "left_out": found.counts}
    show(options, facts, "\n".join([*lines, text]))
    if bad:
        raise BadInputError(
            f"{options.folder}: {bad:,} of {found.images:,} images cannot be read; replace or "
            "remove them, or train with --config.data.on_bad_example=skip, which takes "
            f"{FEW_BAD} of a split, but no more than {FEW_BAD_SHARE:.0%}; for more, with a "
            f"config.data.max_bad_fraction above {bad / found.images:.2g}"
        )
