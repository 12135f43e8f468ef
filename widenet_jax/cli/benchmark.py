"""Measures wall-clock times on the devices of this machine.

  python scripts/benchmark.py train_step --config configs/digits.py:widenet_tiny
  python scripts/benchmark.py train_step --config configs/imagenet.py:widenet_l \\
      --config.batch_size=256 --config.model.moe.dispatch=gather
  python scripts/benchmark.py dispatch --images 16 --tokens 196 --examples_per_group 1 16
  python scripts/benchmark.py feed_forward --embed_dim 256 512 --tokens 4096
                                                     a dense layer and experts of as many parameters
  python scripts/benchmark.py feed_forward --topology=v3-8
                                                     the same priced for a TPU, as by plan.py
  python scripts/benchmark.py input --path DIR       images in DIR/train/CLASS/; beside tf.data with
                                                     --peer=scripts/compare/tf_data.py
  python scripts/benchmark.py text --config configs/text_pretrain.py:albert \\
      --config.data.path=DIR                         reading and masking a text set, or a language
                                                     model's stream; beside transformers with
                                                     --peer=scripts/compare/torch_text.py
  python scripts/benchmark.py checkpoint --config configs/imagenet.py:widenet_b --out DIR
                                                     saving to, and restoring from, a disk
  python scripts/benchmark.py storage --path gs://BUCKET/x
                                                     requests, bytes and waits of a start, log, save
                                                     and resume; also on a disk
  python scripts/benchmark.py device --out DIR       a report on this machine's devices, to send

Prints a table, or with --json a JSON list. Exit codes: 0 done, 2 your
input, 3 the device ran out of memory.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from etils import epath

from widenet_jax.cli.plan import NOTE, add_data_flags, plan_of, read_configs
from widenet_jax.config.files import load_config
from widenet_jax.config.parser import Argv, Options, Parser, not_negative, positive, seconds, show
from widenet_jax.errors import BadInputError, choose
from widenet_jax.files import absolute
from widenet_jax.inference.pretrained_config import set_fields
from widenet_jax.ops.plan.topology import parse_topology

Rows = list[dict[str, Any]]
SIZES = {  # of the layers that a benchmark measures; the first must be a multiple of the second
    "dispatch": {
        "images": [16], "examples_per_group": [1, 16], "tokens": [196], "experts": [4],
        "selected": [2], "embed_dim": [768], "mlp_dim": [3072],
    },
    "feed_forward": {
        "tokens": [32_768], "length": [512], "embed_dim": [256, 512, 1024, 2048, 4096],
        "expert_dim": [128], "experts": [0], "selected": [4],
    },
}  # fmt: skip


def main(argv: Argv = None) -> int:
    """Runs the command and returns its exit code."""
    parser = Parser(__doc__)
    kinds = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")

    def kind(
        name: str, measure: Callable[[Options], Any], text: str, takes_fields: bool = False
    ) -> Callable[..., Any]:
        sub = kinds.add_parser(name, help=text, takes_fields=takes_fields)
        sub.set_defaults(measure=measure)
        sub.add_argument("--json", action="store_true", help="print JSON and nothing else")
        sub.add_argument("--rounds", type=positive, default=5, help="rounds; the median counts")
        return sub.add_argument

    step = kind("train_step", train_step, "rate, MFU, memory and compile time", takes_fields=True)
    step("--steps", type=positive, default=10, help="steps in each round")
    save = kind("checkpoint", checkpoint, "time and bytes of saves and restores", takes_fields=True)
    text = "a report to send: peaks, attention, dispatch and training steps, in ten minutes"
    reporting = kind("device", device, text)
    for add in (save, reporting):
        add("--out", required=True, help="a new directory to write to")
    for add in (step, save):
        add("--config", nargs="+", required=True, metavar="FILE[:VARIANT]")
        add_data_flags(add)
    storing = kind("storage", storage, "requests, bytes and waits of a workdir on gs:// or a disk")
    storing("--path", required=True, help="where folders are made, and removed again")
    dispatching = kind("dispatch", dispatch, "dispatch methods, over all combinations of the sizes")
    dispatching("--method", nargs="+", help="all by default")
    text = "a dense layer and experts, over every combination of the sizes, here or on a TPU"
    feeding = kind("feed_forward", feed_forward, text)
    feeding("--method", nargs="+", default=["dense", "auto"], help="dense, or a dispatch method")
    feeding("--topology", metavar="TPU", help="price for a device of this slice instead: v3-8, ...")
    for name, add in (("dispatch", dispatching), ("feed_forward", feeding)):
        add("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
        for size, default in SIZES[name].items():
            add(f"--{size}", type=not_negative if 0 in default else positive, nargs="+",
                default=default)  # fmt: skip
    images = kind("input", input_pipeline, "images/s of reading and augmenting a folder")
    images("--path", required=True, help="an image folder: PATH/SPLIT/CLASS/x.jpg")
    images("--image_size", type=positive, default=224)
    text = "sequences/s of reading and masking text; tokens/s of a stream"
    texts = kind("text", text_pipeline, text, takes_fields=True)
    texts("--config", required=True, metavar="FILE[:VARIANT]")
    for add in (images, texts):
        add("--batch_size", type=positive, default=64)
        add("--peer", default="", metavar="FILE", help="compare with: scripts/compare/...")
        add("--seconds", type=seconds, default=5.0, help="of each round")
        add("--workers", type=not_negative, nargs="+", default=[0, 2], help="0 for threads")
    return parser.run(run, argv)


def run(options: Options) -> None:
    """Measures and prints."""
    found = options.measure(options)
    from widenet_jax.ops.benchmark.device import page
    from widenet_jax.ops.benchmark.report import table

    show(options, found, table(found) if isinstance(found, list) else page(found))


def experiments(options: Options) -> list[tuple[str, Any]]:
    """Returns (name, experiment on all devices) for each --config."""
    configs = read_configs(options.config, options)
    import jax

    from widenet_jax.experiment import build_experiment

    return [(name, build_experiment(*config, jax.devices())) for name, *config in configs]


def train_step(options: Options) -> Rows:
    named = experiments(options)
    from widenet_jax.ops.benchmark.train_step import train_step_row

    return [train_step_row(*one, rounds=options.rounds, steps=options.steps) for one in named]


def checkpoint(options: Options) -> Rows:
    named, out = experiments(options), new_directory(options.out)
    from widenet_jax.ops.benchmark.checkpoint import saving_row

    return [
        saving_row(*one, workdir=out / str(number), rounds=options.rounds)
        for number, one in enumerate(named)
    ]


def storage(options: Options) -> Rows:
    place = absolute(options.path)
    from widenet_jax.ops.benchmark.storage import storage_rows

    return storage_rows(place, options.rounds)


def new_directory(out: str) -> epath.Path:
    """Returns the directory to write to; raises BadInputError if there is one."""
    if (place := absolute(out)).exists():
        raise BadInputError(f"--out={out} exists; give a new directory")
    return place


def device(options: Options) -> dict[str, Any]:
    out = new_directory(options.out)
    from widenet_jax.ops.benchmark.device import measure, write

    out.mkdir(parents=True)
    keep = partial(write, out=out)
    report = measure(rounds=options.rounds, plan=plan_of, note=NOTE, keep=keep)
    keep(report)
    NOTE(f"{report['seconds']:.0f} s; {options.out} has device.md, device.png and device.json")
    return report


def dispatch(options: Options) -> Rows:
    from widenet_jax.nn.moe.dispatch import ANYWHERE
    from widenet_jax.ops.benchmark.feed_forward import DispatchSize, dispatch_row

    options.method = options.method or list(ANYWHERE)
    return layer_rows(options, DispatchSize, dispatch_row)


def feed_forward(options: Options) -> Rows:
    topology = parse_topology(options.topology) if options.topology else None
    from widenet_jax.ops.benchmark.feed_forward import LayerSize, feed_forward_row

    return layer_rows(options, LayerSize, partial(feed_forward_row, topology=topology))


def layer_rows(options: Options, kind: type, row: Callable[..., dict[str, Any]]) -> Rows:
    """Returns a row for every method and every combination of sizes that makes sense."""
    from widenet_jax.ops.benchmark.feed_forward import DENSE, METHODS, LayerSize, sizes

    known = [DENSE] * (kind is LayerSize) + [*METHODS]
    for method in options.method:
        choose(dict.fromkeys(known), method, field="method")
    choices = {name: getattr(options, name) for name in SIZES[options.benchmark]}
    rows = [
        row(method, size, dtype=options.dtype, rounds=options.rounds)
        for size in sizes(kind, **choices)
        for method in options.method
    ]
    if not rows:
        whole, group, *_ = choices
        raise BadInputError(
            f"no combination makes sense: --{group} must divide --{whole}, and --selected be at "
            "most --experts, or 4 times --embed_dim divided by --expert_dim where --experts is 0"
        )
    return rows


def input_pipeline(options: Options) -> Rows:
    config = load_config("configs/imagenet.py:vit_b")
    config.data.update(source="image_folder", path=options.path, train_split="train")
    config.data.image_size = options.image_size
    rows = []
    for operations, layers in (("decode, crop, flip", 0), ("and RandAugment", 2)):
        config.augment.randaugment_layers = layers
        rows += [{"operations": operations, **row} for row in pipeline(config, options)]
    return rows


def text_pipeline(options: Options) -> Rows:
    config = set_fields(load_config(options.config), options.fields)
    if config.task.name not in ("masked_lm", "language_modeling"):
        raise BadInputError(f"--config={options.config} does not pretrain on text")
    return pipeline(config, options)


def pipeline(config: Any, options: Options) -> Rows:
    from widenet_jax.ops.benchmark.pipelines import pipeline_rows

    names = ("peer", "batch_size", "workers", "rounds", "seconds")
    return pipeline_rows(config, **{name: getattr(options, name) for name in names})
