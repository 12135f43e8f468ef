"""Hugging Face's names against a ViT in plain NumPy, and against transformers where installed."""

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from etils import epath
from weights import reference_vit as reference
from weights.ours import our_logits

from widenet_jax.errors import BadInputError
from widenet_jax.weights.arrays import read_arrays
from widenet_jax.weights.huggingface import from_huggingface


def imported(path) -> dict:
    return from_huggingface(read_arrays(epath.Path(path)), source="hf")


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_names_and_axes(dtype: type, tmp_path):
    """Weights rounded to the stored type first, so that reading must lose nothing."""
    vit = reference.random_vit()

    def rounded(named: dict) -> dict:
        return {k: v.astype(dtype).astype(np.float32) for k, v in named.items()}

    vit = reference.Vit(rounded(vit.outside), [rounded(b) for b in vit.blocks])
    stored = {
        k: np.ascontiguousarray(v).astype(dtype)
        for k, v in reference.huggingface_names(vit).items()
    }
    safetensors.numpy.save_file(stored, tmp_path / "model.safetensors")
    params = imported(tmp_path / "model.safetensors")
    np.testing.assert_allclose(
        our_logits(params, reference.IMAGES), reference.logits(vit, reference.IMAGES), atol=1e-4
    )


def test_a_bare_model_with_its_pooler():
    """ViTModel: no "vit." before the names, a tanh pooler, a mask token that nobody uses."""
    vit = reference.random_vit(pre_logits=True)
    arrays = {k.removeprefix("vit."): v for k, v in reference.huggingface_names(vit).items()}
    arrays |= {
        "pooler.dense.weight": vit.outside["pre_kernel"].T,
        "pooler.dense.bias": vit.outside["pre_bias"],
        "embeddings.mask_token": np.zeros((1, 1, reference.D)),
    }
    params = from_huggingface(arrays, source="hf")
    np.testing.assert_allclose(
        our_logits(params, reference.IMAGES), reference.logits(vit, reference.IMAGES), atol=1e-4
    )


@pytest.mark.parametrize("name", ["vit.embeddings.distillation_token",
                                  "vit.encoder.layer.0.attention.odd.weight",
                                  "vit.encoder.layer.0.output.dense.scale"])  # fmt: skip
def test_a_part_without_a_place_is_named(name: str):
    arrays = reference.huggingface_names(reference.random_vit()) | {name: np.ones(1)}
    with pytest.raises(BadInputError, match=f"hf: {name} has no place in a ViT"):
        from_huggingface(arrays, source="hf")


@pytest.mark.filterwarnings("ignore")  # of other people's libraries
@pytest.mark.parametrize(
    ("hidden_act", "epsilon", "spread"),
    [
        ("gelu_pytorch_tanh", 1e-6, 0.3),
        # Their defaults: an exact GELU and another epsilon, which do not show at this scale.
        ("gelu", 1e-12, 0.02),
    ],
)
def test_equal_logits_with_transformers(hidden_act: str, epsilon: float, spread: float, tmp_path):
    torch = pytest.importorskip("torch", reason="pip install -e '.[interop]'")
    transformers = pytest.importorskip("transformers", reason="pip install -e '.[interop]'")
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=reference.D,
            num_hidden_layers=reference.L,
            num_attention_heads=reference.N,
            intermediate_size=reference.F,
            image_size=reference.SIDE * reference.P,
            patch_size=reference.P,
            num_labels=reference.V,
            hidden_act=hidden_act,
            initializer_range=spread,
            layer_norm_eps=epsilon,
        )
    ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:  # which start at 0 and 1
                parameter += spread * torch.randn_like(parameter)
        theirs = model(torch.from_numpy(reference.IMAGES.transpose(0, 3, 1, 2))).logits.numpy()
    model.save_pretrained(tmp_path)
    params = imported(tmp_path / "model.safetensors")
    assert np.ptp(theirs) > 5 * spread
    np.testing.assert_allclose(our_logits(params, reference.IMAGES), theirs, atol=1e-4)
