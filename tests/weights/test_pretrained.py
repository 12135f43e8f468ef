"""What `config.init_from` takes: runs, exported directories, and other people's files."""

import jax
import numpy as np
import pytest
import safetensors.numpy
from etils import epath
from weights import reference_vit as reference
from weights.ours import our_vit

from widenet_jax.checkpoint.hashes import params_sha256
from widenet_jax.errors import BadInputError
from widenet_jax.models.vit import parameter_shapes
from widenet_jax.weights.exported import write_exported
from widenet_jax.weights.finetune import finetune_params
from widenet_jax.weights.pretrained import load_pretrained
from widenet_jax.weights.trained import read_model


def load(place) -> dict:
    return load_pretrained(str(place), jax.sharding.SingleDeviceSharding(jax.devices()[0]))


def test_a_run_and_its_export_are_the_same(digits_run, tmp_path):
    write_exported(epath.Path(tmp_path / "e"), read_model(str(digits_run)), file_format="npz")
    assert params_sha256(load(digits_run)) == params_sha256(load(tmp_path / "e"))


def test_google_and_huggingface_are_the_same(tmp_path):
    """One model under both names, the latter in two files of one directory."""
    vit = reference.random_vit()
    np.savez(tmp_path / "ViT-S_16.npz", **reference.google_names(vit))
    arrays = {k: np.ascontiguousarray(v) for k, v in reference.huggingface_names(vit).items()}
    names = sorted(arrays)
    (tmp_path / "hf").mkdir()
    for number, half in enumerate((names[:10], names[10:]), start=1):
        safetensors.numpy.save_file(
            {k: arrays[k] for k in half}, tmp_path / f"hf/model-0000{number}-of-00002.safetensors"
        )
    google, hugging_face = load(tmp_path / "ViT-S_16.npz"), load(tmp_path / "hf")
    assert params_sha256(google) == params_sha256(hugging_face)


def test_public_weights_into_a_new_model_at_another_size(tmp_path):
    """The backbone comes, positions grow to 4x4 and the CLS row, the head is the new one's."""
    vit = reference.random_vit(pre_logits=True)
    np.savez(tmp_path / "vit.npz", **reference.google_names(vit))
    pretrained = load(tmp_path / "vit.npz")
    model = our_vit(pretrained, representation=False)
    shapes = parameter_shapes(model, (4 * reference.P, 4 * reference.P, 3))
    fresh = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    new = finetune_params(fresh, pretrained, cls_token=True, source="vit.npz")
    assert new["position"]["position_embedding"].shape == (1, 17, reference.D)
    assert "representation" not in new and not new["head"]["kernel"].any()
    np.testing.assert_array_equal(
        new["encoder"]["block_01_mlp"]["wi"]["kernel"], vit.blocks[1]["wi_kernel"]
    )


def test_a_file_of_somebody_elses_model(tmp_path):
    np.savez(tmp_path / "resnet.npz", **{"conv1.weight": np.ones(3)})
    with pytest.raises(BadInputError, match="neither Google's ViT nor Hugging Face's"):
        load(tmp_path / "resnet.npz")


def test_nothing_there(tmp_path):
    with pytest.raises(BadInputError, match="no finished checkpoint there"):
        load(tmp_path)
