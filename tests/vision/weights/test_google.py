"""Google's `.npz` layouts, each with its logits, against a ViT in plain NumPy."""

import ml_dtypes
import numpy as np
import pytest
from etils import epath
from inference import reference_vit as reference
from inference.ours import our_logits

from widenet_jax.errors import BadInputError
from widenet_jax.inference.exported import read_arrays
from widenet_jax.vision.weights.google import from_google, model_fields

NORM = {"norm": "layer", "norm_position": "pre"}
ENDS = ("Transformer/posembed_input/", "Transformer/", "")
POSITIONS = tuple(f"{folder}pos_embedding" for folder in ENDS)


def imported(arrays: dict, tmp_path) -> dict:
    """Imports through a file, as a user does."""
    np.savez(tmp_path / "vit.npz", **arrays)
    return from_google(read_arrays(epath.Path(tmp_path / "vit.npz")), source="vit.npz")


def assert_equal_logits(params: dict, vit: reference.Vit):
    expected = reference.logits(vit, reference.IMAGES)
    assert np.ptp(expected) > 1  # otherwise equal logits would show little
    np.testing.assert_allclose(our_logits(params, reference.IMAGES), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("prefix", "positions"),
    [*zip(("", "opt/target/", "params/", "params/img/"), (*POSITIONS, POSITIONS[0]), strict=True)],
)
def test_every_prefix_and_place_of_the_positions(prefix: str, positions: str, tmp_path):
    """Arrays beside the tree, such as the optimizer's moments, are left out."""
    vit = reference.random_vit(pre_logits=True)
    arrays = {prefix + k: v for k, v in reference.google_names(vit, positions=positions).items()}
    arrays |= {
        "opt/target/": {"opt/state/step": np.int64(7)},
        "params/img/": {"params/t": np.ones(1), "params/txt/head/bias": np.ones(2)},
    }.get(prefix, {})
    assert_equal_logits(imported(arrays, tmp_path), vit)


@pytest.mark.parametrize("numbered_together", [True, False])
@pytest.mark.parametrize("stacked", [True, False])
def test_blocks_and_head(stacked: bool, numbered_together: bool, tmp_path):
    vit = reference.random_vit(pre_logits=stacked)
    arrays = reference.google_names(vit, stacked=stacked, numbered_together=numbered_together)
    params = imported(arrays, tmp_path)
    assert ("pre_logits" in params) == stacked
    assert_equal_logits(params, vit)
    headless = {k: v for k, v in arrays.items() if not k.startswith("head/")}
    assert "head" not in imported(headless, tmp_path)


def test_a_cls_token_without_a_position(tmp_path):
    """big_vision adds positions before it prepends the token: the token has no position row."""
    vit = reference.random_vit()
    combined = vit.outside["positions"]
    apart = {"positions": combined[:, 1:], "cls": vit.outside["cls"] + combined[:, :1]}
    apart = vit.outside | apart
    params = imported(reference.google_names(reference.Vit(apart, vit.blocks)), tmp_path)
    assert params["position"]["position_embedding"].shape == (1, reference.SIDE**2 + 1, reference.D)
    assert_equal_logits(params, vit)


def test_average_pooling_without_a_cls_token(tmp_path):
    vit = reference.random_vit(cls=False)
    assert_equal_logits(imported(reference.google_names(vit), tmp_path), vit)


def test_bfloat16_stored_as_untyped_bytes(tmp_path):
    """The imported numbers are exactly the file's bfloat16 numbers."""
    vit = reference.random_vit()
    rounded = {k: v.astype(ml_dtypes.bfloat16) for k, v in reference.google_names(vit).items()}
    params = imported(rounded, tmp_path)
    with np.load(tmp_path / "vit.npz") as file:
        assert file["head/kernel"].dtype == np.dtype("V2")

    def cut(named: dict) -> dict:
        return {k: v.astype(ml_dtypes.bfloat16).astype(np.float32) for k, v in named.items()}

    assert_equal_logits(params, reference.Vit(cut(vit.outside), [cut(b) for b in vit.blocks]))


BLOCK, EXTRA = "Transformer/encoderblock_0", np.ones(1)
QUERY = f"{BLOCK}/MultiHeadDotProductAttention_1/query/kernel"
ODD = ("MAPHead_0/probe", "conv_root/kernel", f"{BLOCK}/Odd_0/kernel")
ODD += (f"{BLOCK}/LayerNorm_0/scale/x", f"{BLOCK}0/LayerNorm_0/scale")
SHAPES = {"embedding/kernel": [], QUERY: [8, 8], f"{BLOCK}/LayerNorm_0/scale": []}
NAMED = reference.google_names(reference.random_vit())
APART = reference.google_names(reference.random_vit(), numbered_together=False)


REFUSED = [({name: EXTRA}, f"vit.npz: {name} has no place in a ViT with a CLS") for name in ODD]
REFUSED += [
    ({name: np.ones(shape)}, f"{name} has the shape {shape}, as in no ViT of Google; download it")
    for name, shape in SHAPES.items()
]
REFUSED += [
    ({POSITIONS[0]: np.ones(40)}, "pos_embedding has the shape [40], as in no ViT of Google"),
    (
        {POSITIONS[0]: None},
        "vit.npz: no pos_embedding, so this is not a ViT with learned positions",
    ),
    (APART, "MultiHeadDotProductAttention_0/query/kernel are the same parameter; remove one of"),
    ({POSITIONS[1]: EXTRA}, f"vit.npz: {POSITIONS[0]} and {POSITIONS[1]} are the same parameter"),
]


@pytest.mark.parametrize(("change", "line"), REFUSED)
def test_what_is_no_vit(change: dict, line: str):
    """Positions are absent where they are computed instead of learned."""
    arrays = {name: array for name, array in (NAMED | change).items() if array is not None}
    with pytest.raises(BadInputError) as error:
        from_google(arrays, source="vit.npz")
    assert line in str(error.value)


def test_an_array_of_other_axes_is_named_as_in_the_file():
    """Of a stack without axes the block is named; heads are an axis of a query kernel."""
    stacked = reference.google_names(reference.random_vit(), stacked=True)
    one = {"Transformer/encoderblock/LayerNorm_0/scale": np.float32(1)}
    with pytest.raises(BadInputError, match=r"^vit.npz: Transformer/.*_0/LayerNorm_0/scale has"):
        from_google(stacked | one, source="vit.npz")
    with pytest.raises(BadInputError, match=r"^mixer.npz: no query/kernel, so this is not a ViT"):
        model_fields({"embedding/kernel": EXTRA}, source="mixer.npz")


def test_positions_of_another_width_are_read(tmp_path):
    """What the shapes of the run's model show later is no error here."""
    wider = {POSITIONS[0]: np.ones((1, reference.SIDE**2, reference.D + 1), np.float32)}
    found = imported(NAMED | wider, tmp_path)["position"]["position_embedding"]
    assert found.shape == (1, reference.SIDE**2 + 1, reference.D + 1)


@pytest.mark.parametrize("stacked", [True, False])
def test_heads_are_an_axis_of_the_query_kernel(stacked: bool):
    """The text tower beside the image tower has another number of heads."""
    named = reference.google_names(reference.random_vit(), stacked=stacked)
    arrays = {f"params/img/{k}": v for k, v in named.items()}
    arrays |= {"params/txt/MultiHeadDotProductAttention_0/query/kernel": np.ones((8, 4, 2))}
    fields = model_fields(arrays, source="vit.npz")
    assert fields.pop("attention") == {"name": "full", "num_heads": reference.N}
    assert fields == {**NORM, "norm_epsilon": 1e-6, "activation": "gelu_tanh"}
