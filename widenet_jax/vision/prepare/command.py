"""The subcommands of `scripts/prepare_data.py` that pack image sets."""

from collections.abc import Callable
from typing import Any


def add_commands(commands: Any) -> None:
    """Adds a subcommand for each format that image sets come in."""

    def converter(name: str, place: str, reader: str, text: str) -> Callable[..., Any]:
        command = commands.add_parser(name, help=text, description=text, takes_fields=False)
        reader = f"widenet_jax.vision.prepare.{reader}"
        command.set_defaults(work="widenet_jax.vision.prepare.packing:pack", reader=reader)
        add = command.add_argument
        if place == "--split":
            text = "files of one split, joined in order; also a*, a{0..9}; repeat for others"
            form = {"action": "append", "metavar": "NAME=FILE,...", "help": text}
            add("--split", dest="input", required=True, **form)
        elif place == "--input":
            add("--input", required=True, metavar="PATH")
        else:
            add("input", metavar="NAME", help="e.g. cifar10 or imagenet2012")
        add("--out", required=name != "tfds", metavar="DIR", help="where the packed set goes")
        add("--overwrite", action="store_true", help="replace a set that is there")
        add("--skip_bad", action="store_true", help="leave out images that cannot be read")
        add("--json", action="store_true", help="print one JSON object")
        return add

    text = "folders INPUT/SPLIT/CLASS/*.jpg or INPUT/CLASS/*.jpg"
    add = converter("image_folder", "--input", "packing:read_image_folder", text)
    text = "of INPUT/CLASS/*.jpg, the part that becomes the split val, by file name"
    add("--eval_fraction", type=float, default=0.0, metavar="SHARE", help=text)
    text = "tar archives of class folders, or of one archive a class"
    add = converter("tar", "--split", "archives:read_tar", text)
    text = 'for an archive without folders: a file of lines "image-file-name class"'
    add("--labels", metavar="FILE", help=text)
    add = converter("webdataset", "--split", "archives:read_webdataset", "WebDataset's archives")
    text = "labels are this field of .json; by default of .cls, or label in .json, or of .txt"
    add("--label-column", metavar="NAME", default="", help=text)
    add = converter("parquet", "--split", "arrays:read_parquet", "Hugging Face image parquet files")
    add("--image-column", metavar="NAME", help="image or img by default")
    add("--label-column", metavar="NAME", default="", help="label by default")
    text = "the official cifar-10-binary.tar.gz, or its folder"
    converter("cifar10_binary", "--input", "cifar:read_binary", text)
    converter("cifar_python", "--input", "cifar:read_python", "the same for Python, or CIFAR-100's")
    text = "files of images and labels, or packs of jpeg, offsets, labels, class_names"
    converter("npz", "--split", "arrays:read_npz", text)
    text = "prepare a TensorFlow Datasets image set as array_record, or pack it into --out "
    add = converter("tfds", "NAME", "packing:read_tfds", text + "(needs TensorFlow)")
    add("--data-dir", metavar="DIR", help="TFDS's data directory")
