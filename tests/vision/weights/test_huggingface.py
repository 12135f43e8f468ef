"""Hugging Face's ViT files against a ViT in plain NumPy, and against transformers if installed."""

import json

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from etils import epath
from inference import reference_vit as reference
from inference.ours import our_logits
from refusals import refuses

from widenet_jax.errors import BadInputError
from widenet_jax.inference.exported import read_arrays
from widenet_jax.vision.weights.huggingface import (
    fold_pixels,
    from_huggingface,
    model_fields,
    read_huggingface,
)

LAYOUTS = ("files", "modules")
# Their name of an activation, ours, and the function.
ACTIVATIONS = [
    ("gelu", "gelu", reference.gelu_erf),
    ("gelu_new", "gelu_tanh", reference.gelu_tanh),
    ("gelu_pytorch_tanh", "gelu_tanh", reference.gelu_tanh),
]


def imported(path) -> dict:
    return from_huggingface(read_arrays(epath.Path(path)), source="hf")


def fields_of(**changes: object) -> dict:
    """The fields of our model that their `config.json` decides."""
    return model_fields(reference.huggingface_config(**changes), source="config.json")


def assert_equal_logits(params: dict, vit: reference.Vit) -> None:
    np.testing.assert_allclose(
        our_logits(params, reference.IMAGES), reference.logits(vit, reference.IMAGES), atol=1e-5
    )


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [("files", np.float32), ("modules", ml_dtypes.bfloat16), ("files", np.float16)],
)
def test_names_and_axes(dtype: type, layout: str, tmp_path):
    """The weights are rounded to the stored type first, so that reading must lose nothing."""
    vit = reference.random_vit()

    def rounded(named: dict) -> dict:
        return {k: v.astype(dtype).astype(np.float32) for k, v in named.items()}

    vit = reference.Vit(rounded(vit.outside), [rounded(b) for b in vit.blocks])
    named = reference.huggingface_names(vit, layout=layout)
    stored = {k: np.ascontiguousarray(v).astype(dtype) for k, v in named.items()}
    safetensors.numpy.save_file(stored, tmp_path / "model.safetensors")
    assert_equal_logits(imported(tmp_path / "model.safetensors"), vit)


@pytest.mark.parametrize(("theirs", "ours", "activation"), ACTIVATIONS)
def test_epsilon_and_activation_come_from_their_config(theirs: str, ours: str, activation):
    """A large epsilon, so that the logits show which one was used."""
    vit = reference.random_vit()
    params = from_huggingface(reference.huggingface_names(vit), source="hf")
    fields = fields_of(hidden_act=theirs, layer_norm_eps=0.1)
    assert fields["activation"] == ours
    expected = reference.logits(vit, reference.IMAGES, epsilon=0.1, activation=activation)
    np.testing.assert_allclose(our_logits(params, reference.IMAGES, **fields), expected, atol=1e-5)


def test_their_config():
    """Its defaults, and values that our models do not have."""
    fields = model_fields({}, source="config.json")
    assert fields.pop("attention") == {"name": "full", "num_heads": 12}
    norm = {"norm": "layer", "norm_position": "pre", "norm_epsilon": 1e-12}
    assert fields == {**norm, "activation": "gelu"}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"hidden_act": "swish"},
            "hidden_act='swish' is not an activation of our models; they have",
        ),
        ({"hidden_act": []}, "hidden_act=[] is not an activation"),
        ({"layer_norm_eps": "small"}, "damaged (could not convert string to float"),
        (
            {"layer_norm_eps": float("nan")},
            "damaged (num_attention_heads=2 or layer_norm_eps=nan is",
        ),
        ({"num_attention_heads": None}, "damaged (num_attention_heads=None or layer_norm_eps="),
        ({"num_attention_heads": 2.5}, "damaged (num_attention_heads=2.5 or layer_norm_eps="),
        (
            {"num_attention_heads": float("inf")},
            "damaged (num_attention_heads=inf or layer_norm_eps=",
        ),
    ],
)
def test_values_that_our_models_do_not_have(change: dict, line: str):
    with pytest.raises(BadInputError) as error:
        fields_of(**change)
    assert str(error.value).startswith(f"config.json: {line}")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_bare_model_with_its_pooler(layout: str):
    """ViTModel: names without "vit.", a tanh pooler; `qkv_bias=False` stores no such biases."""
    vit = reference.random_vit(pre_logits=True)
    if layout == "files":
        for block in vit.blocks:
            block |= {f"{name}_bias": np.zeros(reference.D) for name in ("query", "key", "value")}
    named = reference.huggingface_names(vit, layout=layout)
    absent = ("query.bias", "key.bias", "value.bias")
    arrays = {k.removeprefix("vit."): v for k, v in named.items() if not k.endswith(absent)}
    arrays["pooler.dense.weight"] = vit.outside["pre_kernel"].T
    arrays["pooler.dense.bias"] = vit.outside["pre_bias"]
    assert_equal_logits(from_huggingface(arrays, source="hf"), vit)


FILES, MODULES = (
    reference.huggingface_names(reference.random_vit(), layout=layout) for layout in LAYOUTS
)
ODD = ("embeddings.distillation_token", "encoder.layer.0.attention.odd.weight")
ODD += ("embeddings.register_tokens", "layers.0.mlp.weights_in.bias")
ODD += ("layers.0.mlp.fc3.weight", "encoder.layer.0.output.dense.scale")
SHAPES = {"embeddings.patch_embeddings.projection.weight": [8], "layernorm.weight": []}
SHAPES |= {"embeddings.position_embeddings": [40]}
SHAPES |= {"encoder.layer.0.attention.attention.query.weight": [64]}
REFUSED = [({f"vit.{name}": 1}, f"hf: {name} has no place in a ViT; is this anot") for name in ODD]
REFUSED += [
    ({f"vit.{name}": np.ones(shape)}, f"hf: {name} has the shape {shape}, as in no ViT; download")
    for name, shape in SHAPES.items()
]
REFUSED += [(MODULES, "q_proj.weight are the same parameter")]  # under both sets of names
REFUSED += [({"layernorm.bias": 1}, "hf: vit.layernorm.bias and layernorm.bias are the same par")]


@pytest.mark.parametrize(("change", "line"), REFUSED)
def test_what_is_no_vit(change: dict, line: str):
    with pytest.raises(BadInputError) as error:
        from_huggingface(FILES | change, source="hf")
    assert line in str(error.value)


DINOV2 = {"layernorm_before": "norm1", "layernorm_after": "norm2", "intermediate.dense": "mlp.fc1"}
DINOV2 |= {".output.dense": ".mlp.fc2", "attention.mlp.fc2": "attention.output.dense"}
OUT = {"files": ("attention.output.dense", "mlp.fc2"), "modules": ("attention.o_proj", "mlp.fc2")}


def dinov2_names(layout: str) -> dict[str, np.ndarray]:
    """Names the random ViT as `Dinov2Model` does; drawn scales divide what they multiply."""
    arrays, draw = {}, np.random.default_rng(2)
    for name, array in reference.huggingface_names(reference.random_vit(), layout=layout).items():
        for theirs, new in ({"vit.": ""} | DINOV2).items():
            name = name.replace(theirs, new)
        arrays |= {} if "classifier" in name else {name: np.array(array)}
    for block in {name.partition("attention.")[0] for name in arrays if "attention." in name}:
        for i, layer in enumerate(OUT[layout], start=1):
            scale = draw.uniform(0.1, 2, reference.D).astype(np.float32)
            arrays[f"{block}layer_scale{i}.lambda1"] = scale
            for leaf in ("weight", "bias"):
                arrays[f"{block}{layer}.{leaf}"] = (arrays[f"{block}{layer}.{leaf}"].T / scale).T
    return arrays | {"embeddings.mask_token": np.ones((1, reference.D), np.float32)}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("prefix", ["", "dinov2."])
def test_dinov2(prefix: str, layout: str, tmp_path):
    """The same parameters as of a ViT; the classifier, twice as wide, and the mask are left out."""
    arrays = {prefix + name: array for name, array in dinov2_names(layout).items()}
    arrays |= {"classifier.weight": np.ones((5, 2 * reference.D)), "classifier.bias": np.ones(5)}
    facts = {"model_type": "dinov2", "num_attention_heads": reference.N}
    place = epath.Path(tmp_path)
    (place / "config.json").write_text(json.dumps(facts))
    told = r"preprocessor_config.json: is missing; download it too: DINOv2's pixels have ImageNet's"
    refuses(told, read_huggingface, arrays, place, "hf")
    (place / "preprocessor_config.json").write_text("{}")
    params, fields, note = read_huggingface(arrays, place, "hf")
    assert fields["norm_epsilon"] == 1e-6 and note == "not used: classifier"
    expected = from_huggingface(FILES, source="hf")
    del expected["head"]
    assert jax.tree.structure(params) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), params, expected)
    wide = {name: np.ones(9) for name in arrays if name.endswith("scale2.lambda1")}
    refuses(
        r"hf: the scale of encoder/\S+_mlp/wo does not fit",
        from_huggingface,
        arrays | wide,
        source="hf",
    )


MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]  # of ImageNet; ViT-MAE's


def first_layer(rng: np.random.Generator) -> dict:
    projection = {"kernel": rng.normal(size=(4, 4, 3, 5)), "bias": rng.normal(size=5)}
    return {"embed": {"projection": projection}, "head": {"bias": np.ones(2)}}


@pytest.mark.parametrize(
    ("preprocessor", "theirs"),
    [
        ({"image_mean": MEAN, "image_std": STD}, lambda p: (p / 255 - MEAN) / STD),
        ({"do_normalize": False, "image_mean": MEAN}, lambda p: p / 255),
        ({"do_rescale": False, "image_mean": 120, "image_std": 60}, lambda p: (p - 120) / 60),
        ({"rescale_factor": 1 / 127.5, "image_mean": [1], "image_std": [1]}, None),
        ({"image_mean": [0.5] * 3, "do_rescale": None}, None),
        ({}, None),
    ],
)
def test_their_pixels_through_their_layer_are_ours_through_ours(preprocessor: dict, theirs):
    """In float64; None: theirs are ours, and the arrays stay as they are."""
    rng = np.random.default_rng(0)
    params, pixels = first_layer(rng), rng.integers(0, 256, (2, 4, 4, 3))
    folded, told = fold_pixels(params, preprocessor, source="hf")

    def outputs(params: dict, pixels: np.ndarray) -> np.ndarray:
        projection = params["embed"]["projection"]
        return np.einsum("bhwc,hwcd->bd", pixels, projection["kernel"]) + projection["bias"]

    if theirs is None:
        assert folded is params and told == ""
        return
    ours = outputs(folded, pixels / 127.5 - 1)
    np.testing.assert_allclose(ours, outputs(params, theirs(pixels)), atol=1e-9)
    assert folded["head"] is params["head"] and told.endswith("folded into embed")


@pytest.mark.parametrize(
    ("preprocessor", "told"),
    [
        ({"image_std": [0.2, 0.2]}, "could not be broadcast"),
        ({"image_std": 0}, "image_std is not above 0"),
        ({"image_mean": "grey"}, "could not convert string to float"),
        ({"image_mean": 10**400}, "int too large to convert to float"),
        ({"image_mean": float("nan")}, "no finite pixels"),
        ({"image_std": float("inf")}, "no finite pixels that differ"),
        ({"rescale_factor": 0}, "no finite pixels that differ"),
        ([1], "has no attribute 'items'"),
    ],
)
def test_a_damaged_preprocessor_is_named(preprocessor: object, told: str):
    with pytest.raises(BadInputError, match=f"^hf: .*{told}.*; download it again$"):
        fold_pixels(first_layer(np.random.default_rng(0)), preprocessor, source="hf")


@pytest.mark.filterwarnings("ignore")  # warnings of torch and transformers
@pytest.mark.parametrize(
    ("hidden_act", "epsilon", "layout"), [("gelu", 1e-12, "files"), ("gelu_new", 1e-6, "modules")]
)
def test_equal_logits_with_transformers(hidden_act: str, epsilon: float, layout: str, tmp_path):
    """Files as `save_pretrained` writes them, and the names of the modules."""
    torch = pytest.importorskip("torch", reason="pip install -e '.[huggingface]'")
    transformers = pytest.importorskip("transformers", reason="pip install -e '.[huggingface]'")
    torch.manual_seed(0)
    sizes = {
        "hidden_size": reference.D,
        "num_hidden_layers": reference.L,
        "patch_size": reference.P,
    }
    sizes |= {"intermediate_size": reference.F, "num_labels": reference.V, "initializer_range": 0.3}
    sizes |= {"image_size": reference.SIDE * reference.P}
    facts = reference.huggingface_config(hidden_act=hidden_act, layer_norm_eps=epsilon)
    config = transformers.ViTConfig(**sizes, **facts)
    model = transformers.ViTForImageClassification(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:  # which start at 0 and 1
                parameter += 0.3 * torch.randn_like(parameter)
        theirs = model(torch.from_numpy(reference.IMAGES.transpose(0, 3, 1, 2))).logits.numpy()
    model.save_pretrained(tmp_path)
    if layout == "modules":
        arrays = {k: np.ascontiguousarray(v.numpy()) for k, v in model.state_dict().items()}
        safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    fields = model_fields(json.loads((tmp_path / "config.json").read_text()), source="config.json")
    assert np.ptp(theirs) > 1
    params = imported(tmp_path / "model.safetensors")
    np.testing.assert_allclose(our_logits(params, reference.IMAGES, **fields), theirs, atol=1e-5)
