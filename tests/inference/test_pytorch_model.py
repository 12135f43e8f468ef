"""The PyTorch file of an export: which settings it computes, and, with torch, our logits."""

import ast
import importlib.util
import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
from etils import epath
from PIL import Image
from refusals import answered
from sklearn.datasets import load_digits
from untrained import export_untrained

import widenet_jax as wj
from configs import digits
from configs.defaults import MODELS
from configs.variants import IMAGES, model_section
from widenet_jax.cli import export
from widenet_jax.inference import pytorch_model
from widenet_jax.inference.exported import write_exported
from widenet_jax.inference.pytorch_model import uncovered
from widenet_jax.inference.trained import open_trained, read_model
from widenet_jax.nn.attention import ATTENTIONS
from widenet_jax.nn.feed_forwards import FEED_FORWARDS
from widenet_jax.nn.moe.routers import ROUTERS
from widenet_jax.run.workdir import flatten, plain
from widenet_jax.trained import each_example
from widenet_jax.vision.data.files import pixels_of
from widenet_jax.vision.predict import picture_of

SOURCE = Path(pytorch_model.__file__)
LIBRARY = {"json", "math", "re", "pathlib"}
# A variant of configs/digits.py, and fields with other values. Together they have each value of
# each field that the file computes.
CASES = {
    "widenet": ("widenet_tiny", {}),
    "tight": (
        "widenet_tiny,share_norms=true",
        {"moe.capacity_factor_eval": 0.5, "pre_logits": True},
    ),
    "vit": ("vit_tiny", {"activation": "gelu"}),
    "post": ("vit_tiny", {"norm_position": "post", "attention.head_dim": 8, "norm_epsilon": 1e-3}),
    "vit_moe": (
        "vit_moe_tiny,ffn_blocks=every_2,depth=4",
        {"moe.capacity_rule": "authors_code", "cls_token": "zero", "activation": "relu"},
    ),
    "looped": ("widenet_tiny,loop=1+2x2+1", {"moe.capacity_factor_eval": 1.2}),
    "groups": (
        "widenet_tiny,loop=4x2,routing_groups=4,experts=8,selected=3",
        {"moe.capacity_rule": "unlimited", "ffn_output_activation": True},
    ),
    "letters": (
        "widenet_tiny,loop=ABCBAx1",
        {
            **{"loop.tie.router": "none", "loop.residual_scale": "1/loops", "ffn_bias": False},
            **{"moe.use_bias": False, "moe.capacity_rule": "literal", "moe.activation": "gelu"},
        },
    ),
    "first": (
        "widenet_tiny,loop=2x2,routing=first",
        {
            **{"moe.activation": "relu", "loop.residual_scale": "1/(loops*sqrt(layers))"},
            **{"moe.capacity_factor_eval": 0.6, "loop.tie.norms": "core"},
        },
    ),
    "core": (
        "widenet_tiny,loop=1x2+1x2,share_norms=true",
        {f"loop.tie.{part}": "core" for part in ("attention", "experts", "router")},
    ),
    "own": (
        "widenet_tiny,loop=2x2",
        {f"loop.tie.{part}": "none" for part in ("attention", "experts")}
        | {"loop.tie.router": "loops"},
    ),
}
# Fields with named values that change no logits of a trained model, or only their rounding.
WITHOUT_EFFECT = {"dtype", "kernel_init", "remat", "attention.implementation", "moe.dispatch"}
WITHOUT_EFFECT |= {"loop.counts.train", "moe.losses.over", "adapter.tie"}


def config_of(case: str):
    variant, changes = CASES[case]
    config = digits.get_config(variant)
    config.update_from_flattened_dict({f"model.{name}": value for name, value in changes.items()})
    return config


def changed(changes: dict) -> dict:
    """Returns the config of "widenet", as an export has it, with changes."""
    config = json.loads(json.dumps(plain(config_of("widenet"))))
    for field, value in changes.items():
        *sections, name = field.split(".")
        section = config
        for inner in sections:
            section[inner] = section = section.get(inner) or {}
        section[name] = value
    return config


@pytest.fixture(scope="module")
def compared() -> dict[str, set]:
    """Each field of the model, with its values in CASES."""
    found: dict[str, set] = {}
    for case in CASES:
        for name, value in flatten(plain(config_of(case).model)).items():
            found.setdefault(name, set()).add(str(value))
    return found


def choices() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields every field with named values, by its name in `config.model`, and the values."""
    for section, rows in MODELS.items():
        for name, (_, _, *bounds) in rows.items():
            if bounds and isinstance(bounds[0], tuple):
                yield f"{section}.{name}".removeprefix("model."), bounds[0]
    yield from {"attention.name": (*ATTENTIONS,), "moe.router.name": (*ROUTERS,)}.items()


@pytest.mark.parametrize(("field", "values"), [*choices()])
def test_each_choice_is_computed_or_refused(field: str, values: tuple[str, ...], compared):
    """And what is computed, is compared below."""
    found = {value: uncovered(changed({f"model.{field}": value})) for value in values}
    assert {told for told in found.values() if told} <= {
        f"config.model.{field}={v}" for v in values
    }
    computed = {value for value, told in found.items() if not told}
    assert field in WITHOUT_EFFECT or computed <= compared.get(field, set())


@pytest.mark.parametrize("name", [*IMAGES.names, "widenet_b,preset=authors_code"])
def test_image_models_are_computed(name: str):
    task = {"name": "classification"}
    assert uncovered({"task": task, "model": model_section(name)}) == ""


@pytest.mark.parametrize("name", ["albert", "widenet_4", "wt_s", "moeut_44m"])
def test_other_models_are_refused(name: str):
    model = model_section(name)
    told = uncovered({"task": {"name": "classification"}, "model": model})
    assert told == f"config.model.name={model['name']}"


def test_each_feed_forward_is_computed_or_refused():
    refused = {kind for kind in FEED_FORWARDS if uncovered(changed({"model.ffn": kind}))}
    assert refused == {"soft_moe", "top_k_mlp", "product_key"}


@pytest.mark.parametrize(
    ("field", "value"),
    [("model.attention.rope", 0.5), ("model.attention.qk_norm", True),
     ("model.moe.shared_experts", 1), ("model.moe.router.bias_balancing", False),
     ("model.moe.output_activation", True), ("model.loop.embed", True),
     ("model.loop.state_norm", True), ("model.soft_moe.num_experts", 4), ("model.adapter.rank", 1),
     ("model.a_field_of_tomorrow", 0), ("task.name", "masked_lm")],
)  # fmt: skip
def test_other_settings_are_refused(field: str, value: object):
    """Also those that the file does not know."""
    assert uncovered(changed({})) == ""
    assert uncovered(changed({field: value})) == f"config.{field}={value}"


def test_a_run_with_parts_of_its_own_is_refused():
    assert uncovered(changed({"imports": ["sha256:1 my.py"]})) == "config.imports=sha256:1 my.py"


def test_the_file_stands_alone():
    """It imports nothing of this package, and nothing that brings torch before it loads."""
    tree = ast.parse(SOURCE.read_text())

    def imports(nodes: Iterable[ast.AST]) -> set[str]:
        ways = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        return {getattr(way, "module", None) or alias.name for way in ways for alias in way.names}

    assert imports(tree.body) == LIBRARY
    assert imports(ast.walk(tree)) == LIBRARY | {"safetensors.torch", "torch", "PIL"}


def test_an_export_has_the_file(digits_export: Path, tmp_path: Path, capsys):
    """And the blocks that it runs, and a card that names it; an .npz export has neither."""
    assert (digits_export / "pytorch_model.py").read_bytes() == SOURCE.read_bytes()
    record = json.loads((digits_export / "export.json").read_text())
    shared = {"attention": "attention", "ffn": "moe", "scale": 1.0, "follows": None}
    assert record["blocks"] == [
        shared
        | {"norm_attention": f"block_0{t}_norm_attention", "norm_ffn": f"block_0{t}_norm_ffn"}
        for t in range(2)
    ]
    assert record["slots"] == 8  # factor 1, 2 choices of 16 tokens, 4 experts
    names = safetensors.numpy.load_file(digits_export / "params.safetensors").keys()
    scopes = {name.split("/")[1] for name in names if name.startswith("encoder/")}
    used = {value for block in record["blocks"] for value in block.values()} - {1.0, None}
    assert scopes == used | {"norm_out"}
    card = (digits_export / "README.md").read_text()
    head = "---\nlibrary_name: widenet_jax\npipeline_tag: image-classification\n---\n\n# WideNet, "
    assert card.startswith(head) and "from pytorch_model import Classifier" in card
    out = tmp_path / "npz"
    flags = (f"--workdir={digits_export}", f"--out={out}", "--format=npz", "--license=Apache-2.0")
    answered(capsys, export.main, *flags)
    card = (out / "README.md").read_text()
    assert "\nlicense: apache-2.0\n---\n" in card and "Classifier" not in card
    assert not (out / "pytorch_model.py").exists()


def test_an_export_without_the_file_says_why(digits_export: Path, tmp_path: Path, capsys):
    place, out = shutil.copytree(digits_export, tmp_path / "model"), tmp_path / "out"
    config = json.loads((place / "config.json").read_text())
    config["model"]["moe"]["router"] = {"name": "switch"}
    (place / "config.json").write_text(json.dumps(config))
    record = json.loads((place / "export.json").read_text())
    del record["config_sha256"]  # of the config that it was
    (place / "export.json").write_text(json.dumps(record))
    assert export.main([f"--workdir={place}", f"--out={out}"]) == 0
    assert capsys.readouterr().err == (
        f"note: {out} has no pytorch_model.py, which does not compute "
        "config.model.moe.router.name=switch\n"
    )
    assert not (out / "pytorch_model.py").exists()
    assert "Classifier" not in (out / "README.md").read_text()


@pytest.mark.parametrize("order", ["<", ">"])
def test_photos_of_16_bits_keep_the_upper_8(order: str):
    grey = np.linspace(0, 65535, 60).reshape(6, 10).astype(f"{order}u2")
    photo = Image.frombytes("I;16B" if order == ">" else "I;16", (10, 6), grey.tobytes())
    found = pytorch_model.eight_bits(photo).convert("RGB")
    np.testing.assert_array_equal(found, pixels_of(photo))
    assert np.ptp(found) == 255
    for mode in ("I", "F"):
        with pytest.raises(ValueError, match=f"mode {mode} have no known range"):
            pytorch_model.eight_bits(Image.new(mode, (2, 2)))


# --- With torch


def classifier(directory: Path) -> object:
    """Returns the model by the file in an export."""
    pytest.importorskip("torch", reason="pip install -e '.[huggingface]'")
    path = directory / "pytorch_model.py"
    spec = importlib.util.spec_from_file_location("pytorch_model", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Classifier()


def their_logits(directory: Path, images: np.ndarray) -> np.ndarray:
    """Returns the logits of images [B, height, width, C], by the file in an export."""
    torch = pytest.importorskip("torch", reason="pip install -e '.[huggingface]'")
    return classifier(directory)(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()


@pytest.mark.filterwarnings("ignore")  # warnings of torch
@pytest.mark.parametrize("case", CASES)
def test_equal_logits_in_pytorch(case: str, tmp_path: Path):
    """Of several images at once, where ours are routed one by one; all parameters are random."""
    pytest.importorskip("torch", reason="pip install -e '.[huggingface]'")
    info = {"class_names": tuple("0123456789")}
    read = read_model(str(export_untrained(config_of(case), info, tmp_path / "npz")))
    write_exported(epath.Path(tmp_path / "export"), read, file_format="safetensors")
    record = json.loads((tmp_path / "export" / "export.json").read_text())
    slots = {"tight": 4, "first": 5, "looped": 10}  # less than T = 16, so that choices are dropped
    assert record["slots"] == slots.get(case, record["slots"])
    ours = open_trained(str(tmp_path / "export"))
    images = np.random.default_rng(1).uniform(-1, 1, (5, 8, 8, 1)).astype(np.float32)
    run = each_example(ours, lambda task, apply, batch: apply(batch, None)[0])
    logits = np.asarray(jax.jit(run)(ours.params, {"image": images}))
    assert np.ptp(logits) > 1
    np.testing.assert_allclose(their_logits(tmp_path / "export", images), logits, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_equal_probabilities_of_a_model_in_float16(tmp_path: Path, capsys):
    pytest.importorskip("torch", reason="pip install -e '.[huggingface]'")
    out, name = tmp_path / "digits", "widenet_tiny_digits"
    answered(capsys, export.main, f"--workdir={name}", f"--out={out}", "--dtype=float16")
    images = load_digits().images[:8].astype(np.uint8) * 15
    logits = their_logits(out, images[..., None].astype(np.float32) / 127.5 - 1)
    shares = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    for row, found in zip(shares, wj.load(name).predict(images, top=10), strict=True):
        for one in found:
            assert abs(row[int(one["class"])] - one["probability"]) < 1e-5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("file", "change", "told"),
    [
        ("config", lambda config: config["model"].update(norm="rms"), "config.model.norm=rms$"),
        ("export", lambda record: record.pop("blocks"), "an older export.json; export the model"),
    ],
)
def test_the_file_refuses_what_it_does_not_compute(file, change, told, digits_export, tmp_path):
    """Beside a config or a record of another export."""
    place = shutil.copytree(digits_export, tmp_path / "export")
    content = json.loads((place / f"{file}.json").read_text())
    change(content)
    (place / f"{file}.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"export: pytorch_model.py does not compute {told}"):
        their_logits(place, np.zeros((1, 8, 8, 1), np.float32))


@pytest.mark.filterwarnings("ignore")
def test_images_of_another_size_are_refused(digits_export: Path):
    with pytest.raises(ValueError, match=r"images must be \[B, 1, 8, 8\] in \[-1, 1\]"):
        their_logits(digits_export, np.zeros((1, 8, 6, 1), np.float32))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("crop", ["squash", "central"])
def test_photos_are_prepared_as_by_ours(crop: str, digits_export: Path, tmp_path: Path):
    """Of a photo on its side, larger and smaller than the model, or of 16 bits; to two greys."""
    place = shutil.copytree(digits_export, tmp_path / "export")
    config = json.loads((place / "config.json").read_text())
    config["augment"] |= {"eval_crop": crop, "eval_crop_fraction": 0.8, "exif_orientation": True}
    (place / "config.json").write_text(json.dumps(config))
    model, ours = classifier(place), open_trained(str(place))
    for width, height, kind in ((90, 60, "u1"), (6, 7, "u1"), (20, 16, "u2")):
        down, right = np.mgrid[:height, :width] / max(height, width)
        grey = np.uint8(127 + 60 * np.sin(3 * down) + 60 * np.cos(2 * right))
        pixels = np.uint16(grey) * 257 if kind == "u2" else np.stack([grey] * 3, axis=-1)
        exif = Image.Exif()
        exif[0x0112] = 6  # turned by 90 degrees
        file = tmp_path / f"{width}.png"
        Image.fromarray(pixels).save(file, exif=exif)
        theirs = model.prepare(Image.open(file)).numpy()[0].transpose(1, 2, 0)
        assert np.abs(theirs * 127.5 + 127.5 - picture_of(file, ours)).max() <= 2
