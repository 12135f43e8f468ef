"""What `config.init_from` accepts: runs, exported directories, and public ViT files."""

import json
import shutil
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest
import safetensors.numpy
from inference import reference_vit as reference
from inference.ours import our_vit
from refusals import refuses

from configs import cifar10, finetune
from configs.variants import model_section
from widenet_jax.checkpoint.manifest import params_sha256
from widenet_jax.inference.pretrained import (
    Pretrained,
    differing_fields,
    finetune_params,
    flat_fields,
    load_pretrained,
    other_functions,
)
from widenet_jax.inference.pretrained_config import set_fields
from widenet_jax.nn.build import parameter_shapes

FULL = {"name": "full", "head_dim": 0}  # attention of N heads of size D / N
DIGITS_HEADS = {"attention": FULL | {"num_heads": 4}, "embed_dim": 32}
DEVICE = jax.sharding.SingleDeviceSharding(jax.devices()[0])
HEAD = {"head": {"kernel": np.ones((2, 3))}}


def opened(place: Path, info: dict | None = None, **fields: object) -> Pretrained:
    """Loads for a run whose `config.model` has these fields, by default those of `reference`."""
    attention = FULL | {"num_heads": reference.N}
    model = model_section("vit_tiny") | {"attention": attention} | fields
    return load_pretrained(str(place), DEVICE, model=model, info=info or {})


def load(place: Path, **fields: object) -> dict:
    return opened(place, **fields).params


def write_huggingface(place: Path, vit: reference.Vit, **facts: object) -> None:
    """Writes a directory with the weights in two files, as large models have them."""
    arrays = {k: np.ascontiguousarray(v) for k, v in reference.huggingface_names(vit).items()}
    names = sorted(arrays)
    place.mkdir()
    for number, half in enumerate((names[:10], names[10:]), start=1):
        file = place / f"model-0000{number}-of-00002.safetensors"
        safetensors.numpy.save_file({k: arrays[k] for k in half}, file)
    (place / "config.json").write_text(json.dumps(reference.huggingface_config(**facts)))


def test_a_run_and_its_export_are_the_same(digits_run, digits_export):
    """Parameters and classes: a head of other classes, or of classes without names, is new."""
    run, export = (load(place, **DIGITS_HEADS) for place in (digits_run, digits_export))
    assert params_sha256(run) == params_sha256(export)
    names = list("0123456789")
    for place, same, info in (
        (digits_run, True, {"class_names": names}),
        (digits_export, True, {"class_names": names}),
        (digits_export, False, {"class_names": names[::-1]}),
        (digits_run, False, {}),
    ):
        assert opened(place, info, **DIGITS_HEADS).same_classes == same, info


def test_google_and_huggingface_are_the_same(tmp_path):
    """One model under both names."""
    vit = reference.random_vit()
    np.savez(tmp_path / "ViT-S_16.npz", **reference.google_names(vit))
    write_huggingface(tmp_path / "hf", vit)
    google, hugging_face = load(tmp_path / "ViT-S_16.npz"), load(tmp_path / "hf")
    assert params_sha256(google) == params_sha256(hugging_face)


def test_the_normalisation_of_pixels_beside_the_weights_is_folded_in(tmp_path):
    """mean 0 and std 0.5: z = 2 u = x + 1, so that the bias grows by the sum of the kernel."""
    vit = reference.random_vit()
    place, facts = tmp_path / "hf", tmp_path / "hf" / "preprocessor_config.json"
    write_huggingface(place, vit)
    assumed = "preprocessor_config.json is missing: mean 0.5 and std 0.5 of pixels assumed"
    assert opened(place).note == assumed
    # A reader's note stands beside ours, here of a run whose data has a tokenizer.
    alone = "no tokenizer beside the weights: the run's is taken for theirs"
    assert opened(place, info={"tokenizer": {}}).note == f"{assumed}; {alone}"
    facts.write_text("{}")
    assert opened(place).note == ""
    pixels = {"do_normalize": True, "image_mean": [0.0] * 3, "image_std": [0.5] * 3}
    facts.write_text(json.dumps(pixels))
    projection = load(place)["embed"]["projection"]
    kernel, bias = vit.outside["patch_kernel"], vit.outside["patch_bias"]
    np.testing.assert_allclose(projection["kernel"], kernel)
    np.testing.assert_allclose(projection["bias"], bias + kernel.sum((0, 1, 2)), atol=1e-5)


def test_a_grid_that_is_no_square_is_refused(tmp_path):
    """Positions of 1 x 4 patches are as many as those of 2 x 2; a pair of equal sides is fine."""
    told = r"config\.json: image_size=\[4, 16\], so its positions are not of a square grid"
    for number, size in enumerate(([4, 16], [8, 8], 8, None)):
        place = tmp_path / f"hf_{number}"
        write_huggingface(place, reference.random_vit(), image_size=size)
        if size == [4, 16]:
            refuses(told, load, place)
        else:
            assert len(load(place)["position"]["position_embedding"][0]) == 5


def test_another_function_is_refused_with_the_flags_to_add(digits_export, tmp_path):
    """The shapes are the same, so nothing else would notice."""
    place, facts = tmp_path / "hf", {"hidden_act": "gelu", "layer_norm_eps": 1e-12}
    write_huggingface(place, reference.random_vit(), **facts)
    told = (
        f"^config.init_from={place} was trained with another function than this run's "
        "attention.num_heads=4, norm_epsilon=1e-06, activation=gelu_tanh; add "
        "--config.model.attention.num_heads=2 --config.model.norm_epsilon=1e-12 "
        "--config.model.activation=gelu$"
    )
    refuses(told, load, place, **DIGITS_HEADS)
    load(place, norm_epsilon=1e-12, activation="gelu")
    eight = {"attention": FULL | {"num_heads": 8}, "embed_dim": 32}
    refuses(r"; add --config\.model\.attention\.num_heads=4$", load, digits_export, **eight)


def test_a_model_of_another_size_is_named():
    """By the nearest variant, whatever its options; a size of one's own has no name."""
    here = flat_fields(model_section("widenet_b"))
    for variant, told in (
        ("widenet_s,experts=8", "embed_dim=128, this run's model 768; it is widenet_s"),
        ("widenet_s,depth=5", "768; finetune with the config.model it was trained with"),
    ):
        assert told in next(other_functions(flat_fields(model_section(variant)), here, "runs/a"))


def test_what_is_computed_otherwise_is_told():
    """A router, K and the values read may be meant, another activation not."""
    differing = lambda *models: differing_fields(*map(flat_fields, models))  # noqa: E731
    stored = model_section("widenet_tiny,selected=4")
    stored["dropout"], stored["moe"]["losses"]["z"] = 0.5, 1.0  # of training alone
    here = model_section("widenet_tiny,selected=2,router=sigmoid")
    told = ["moe.num_selected_experts=2 (4 there)", "moe.router.name=sigmoid (top_k there)"]
    assert differing(stored, here) == told
    line = finetune_params(HEAD, HEAD, model=here, source="runs/a", differing=told)[1]
    assert line.endswith(f"; differs from the pretrained model in: {told[0]}, {told[1]}")
    keys = model_section("vit_tiny,ffn=product_key")
    fewer = keys | {"product_key": keys["product_key"] | {"knn": 7}}
    assert differing(keys, fewer) == ["product_key.knn=7 (32 there)"]
    assert differing(keys, keys) == []
    here["moe"]["activation"] = "relu"
    (told,) = other_functions(flat_fields(stored), flat_fields(here), "runs/a")
    assert told.endswith("; add --config.model.moe.activation=gelu_tanh")


def test_public_weights_into_a_new_model_at_another_size(tmp_path):
    """The backbone is taken, positions grow to 4x4 and keep the CLS row, the head is new."""
    vit = reference.random_vit(pre_logits=True)
    np.savez(tmp_path / "vit.npz", **reference.google_names(vit))
    pretrained = load(tmp_path / "vit.npz")
    model = our_vit(pretrained, pre_logits=False)
    side = 4 * reference.P
    inputs = {"image": jax.ShapeDtypeStruct((1, side, side, 3), np.float32)}
    shapes = parameter_shapes(model, inputs)
    fresh = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    fields = {"name": "vision_transformer", "cls_token": "learned"}
    new, _ = finetune_params(fresh, pretrained, model=fields, source="vit.npz")
    assert new["position"]["position_embedding"].shape == (1, 17, reference.D)
    assert "pre_logits" not in new and not new["head"]["kernel"].any()
    kernel = new["encoder"]["block_01_mlp"]["wi"]["kernel"]
    np.testing.assert_array_equal(kernel, vit.blocks[1]["wi_kernel"])


@pytest.mark.parametrize("module", [cifar10, finetune])
def test_the_variant_pretrained_takes_public_weights(module: ModuleType, tmp_path):
    """Their sizes, what they compute and the size of their images: no flag has to repeat it."""
    vit = reference.random_vit()
    np.savez(tmp_path / "vit.npz", **reference.google_names(vit))
    write_huggingface(tmp_path / "hf", vit, hidden_act="gelu", layer_norm_eps=1e-12)
    for name, activation, epsilon in (("vit.npz", "gelu_tanh", 1e-6), ("hf", "gelu", 1e-12)):
        place = str(tmp_path / name)
        config = set_fields(module.get_config("pretrained"), [f"--config.init_from={place}"])
        model = config.model.to_dict()
        assert (model["activation"], model["norm_epsilon"]) == (activation, epsilon)
        sizes = (model["embed_dim"], model["mlp_dim"], model["patch_size"])
        assert sizes == (reference.D, reference.F, reference.P)
        assert config.data.image_size == reference.SIDE * reference.P
        load_pretrained(place, DEVICE, model=model, info={})  # it refuses what computes otherwise
    (tmp_path / "config.json").write_text("{")  # of something else: an .npz is described by itself
    flags = [f"--config.init_from={tmp_path / 'vit.npz'}"]
    assert set_fields(module.get_config("pretrained"), flags).model.embed_dim == reference.D
    arrays = reference.google_names(vit)
    np.savez(tmp_path / "vit.npz", **{k: v for k, v in arrays.items() if "MlpBlock" not in k})
    told = "block_00_mlp is missing from the weights; download all of their files$"
    refuses(told, set_fields, module.get_config("pretrained"), flags)


def test_what_is_no_model(tmp_path):
    write_huggingface(tmp_path / "hf", reference.random_vit())
    (tmp_path / "hf" / "config.json").unlink()
    np.savez(tmp_path / "resnet.npz", **{"conv1.weight": np.ones(3)})
    for name, message in (
        ("hf", r"config\.json is missing beside the weights"),
        ("resnet.npz", "neither a ViT of Google or timm nor a ViT, BERT or ALBERT of"),
        ("", "no finished checkpoint there"),
    ):
        refuses(message, load, tmp_path / name)


def test_weights_of_another_type_and_of_two_copies(tmp_path):
    """Integers, which training could not change; a copy beside the files of another."""
    named = reference.google_names(reference.random_vit())
    for kind in (np.int64, np.complex64, "S3"):
        odd = {"head/bias": named["head/bias"].astype(kind)}
        np.savez(tmp_path / "vit.npz", **named | odd)
        refuses(r"vit.npz: head/bias is of the type .*, and para", load, tmp_path / "vit.npz")
    place = tmp_path / "hf"
    write_huggingface(place, reference.random_vit())
    for text in ("[]", "3"):
        (place / "config.json").write_text(text)
        refuses(r"config.json: holds no JSON object; copy", load, place)
    shutil.copy(place / "model-00002-of-00002.safetensors", place / "model.safetensors")
    refuses(r": model.safetensors and another file hold vit.\S+; k", load, place)
