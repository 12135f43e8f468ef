"""Exports a trained model: parameters, config, class names, tokenizer and a model card.

  python scripts/export.py --workdir=runs/mine --out=exported/mine
  python scripts/export.py --workdir=runs/mine --out=exported/mine --format=npz --checkpoint=best
  python scripts/export.py --workdir=runs/albert --out=exported/albert --format=huggingface
  python scripts/export.py --workdir=runs/mine --out=exported/program --format=stablehlo
  python scripts/export.py --workdir=runs/mine --out=exported/half --dtype=float16

--dtype=float16 halves the file and compares both on the run's evaluation split, for the model card.
Image classifiers in safetensors come with pytorch_model.py, which computes them without JAX.

evaluate.py, predict.py and analyze.py take a directory of the first two kinds as their --workdir. A
run starts from any of the first three with --config.init_from. Hugging Face's transformers opens
the third kind, for which its library must have such a model: ALBERT and BERT, but no mixture of
experts. The last is a program that classifies images or texts in any process that has JAX.
Exit codes: 0 done, 2 your input, 3 no checkpoint is intact.
"""

import dataclasses

from widenet_jax.config.parser import Argv, Options, Parser, add_model_flags, show
from widenet_jax.errors import choose, refuse, refuse_value


def main(argv: Argv = None) -> int:
    """Runs the command and returns its exit code."""
    parser = Parser(__doc__, takes_fields=False)
    add_model_flags(parser)
    add = parser.add_argument
    add("--out", required=True, metavar="DIR", help="a new directory")
    add("--format", default="safetensors", help="safetensors, npz, huggingface or stablehlo")
    add("--dtype", default="float32", help="of the parameters in the file: float32 or float16")
    add("--license", metavar="TEXT", help="of the model and its data, for the model card")
    return parser.run(export, argv)


def export(options: Options) -> None:
    from widenet_jax.files import STARTS, absolute, find_model
    from widenet_jax.inference.exported import FORMATS, plain_files, write_exported
    from widenet_jax.inference.model_card import origin
    from widenet_jax.inference.pytorch_model import uncovered
    from widenet_jax.inference.trained import open_trained, read_model
    from widenet_jax.run.stopping import say
    from widenet_jax.run.workdir import earlier_starts

    chosen, place = choose(FORMATS, options.format, field="format"), options.workdir
    halves = choose({"float32": False, "float16": True}, options.dtype, field="dtype")
    refuse(
        f"--format={options.format}",
        (halves and chosen.contents is not plain_files, "no float16 there; leave --dtype out"),
        (options.license and chosen.opens, "no model card there; leave --license out"),
    )
    out = absolute(options.out)
    full = out.exists() and any(out.iterdir())
    refuse_value(f"--out={out}", (full, "is not empty; name a new directory"))
    read = open_trained if chosen.opens else read_model
    model = read(place, checkpoint=options.checkpoint)
    card = model.card or origin(earlier_starts(absolute(find_model(place)[0]) / STARTS))
    text = " ".join(options.license.replace("|", "\\|").split()) if options.license else ""
    model = dataclasses.replace(model, card={**card, **({"license": text} if text else {})})
    if halves:
        from widenet_jax.inference.float16 import in_float16

        model = in_float16(model, open_trained(place, checkpoint=options.checkpoint))
    write_exported(out, model, file_format=options.format, place=place)
    setting = options.format == "safetensors" and uncovered(model.config)
    if setting and model.config["task"]["name"] == "classification":
        say(f"note: {options.out} has no pytorch_model.py, which does not compute {setting}")
    written = {"out": options.out, "format": options.format, "step": model.step}
    show(options, written, f"{options.out}: step {model.step:,}, {chosen.file}")
