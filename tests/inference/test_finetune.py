"""Finetuning: the backbone is copied, the head is not; resized positions by hand."""

from functools import partial
from types import MappingProxyType

import numpy as np
import pytest
from refusals import refuses

from widenet_jax.inference.pretrained import finetune_params
from widenet_jax.nn.settings import SoftMoeSettings
from widenet_jax.optim.build import is_frozen
from widenet_jax.vision.weights.huggingface import resize_positions


def positions(grid: list) -> np.ndarray:
    """Returns the rows of a grid of numbers as [1, T, 1]."""
    return np.asarray(grid, np.float32).reshape(1, -1, 1)


def test_bilinear_by_hand():
    """2x2 to 4x4: new centres lie at -1/4, 1/4, 3/4, 5/4 of the old; the border is repeated."""
    resized = resize_positions(positions([[0, 4], [8, 12]]), 16, cls_token=False)
    np.testing.assert_allclose(
        resized.reshape(4, 4), [[0, 1, 3, 4], [2, 3, 5, 6], [6, 7, 9, 10], [8, 9, 11, 12]]
    )


def test_channels_and_the_cls_row_keep_apart():
    """Of more channels than an image may have, each is resized by itself; a constant stays."""
    grid = np.random.default_rng(0).normal(size=(1, 9, 600)).astype(np.float32)
    grid[..., 0] = 1.5
    whole = resize_positions(grid, 16, cls_token=False)
    np.testing.assert_array_equal(whole[..., 0], np.full((1, 16), 1.5))
    for d in (3, 599):
        alone = resize_positions(grid[..., d : d + 1], 16, cls_token=False)
        np.testing.assert_array_equal(whole[..., d : d + 1], alone)
    position = np.concatenate([positions([99]), positions([[0, 4], [8, 12]])], axis=1)
    resized = resize_positions(position, 17, cls_token=True)
    assert resized.shape == (1, 17, 1) and resized[0, 0, 0] == 99
    without = resize_positions(position[:, 1:], 16, cls_token=False)
    np.testing.assert_array_equal(resized[:, 1:], without)


@pytest.mark.parametrize(("old", "new", "named"), [(5, 16, 5), (4, 6, 6), (0, 16, 0)])
def test_a_grid_that_is_not_square(old: int, new: int, named: int):
    told, old = f"positions of {named} patches do not form a square", np.zeros((1, old, 3))
    refuses(told, resize_positions, old, new, cls_token=False)


def full(value: float, *shape: int) -> np.ndarray:
    return np.full(shape, value, np.float32)


def dense(value: float, *shape: int) -> dict:
    return {"kernel": full(value, *(shape or (2, 2)))}


def params(value: float, *, tokens: int = 4, classes: int = 3, embed_dim: int = 2) -> dict:
    return {
        "embed": dense(value, 3, embed_dim),
        "encoder": {"norm": {"scale": full(value, embed_dim)}},
        "head": dense(value, embed_dim, classes),
        "position": {"position_embedding": full(value, 1, tokens, embed_dim)},
    }


MODEL = MappingProxyType({"name": "vision_transformer", "cls_token": "none"})
TO_PRETRAINED = MappingProxyType({"model": MODEL, "source": "runs/pretrained"})


def test_the_backbone_is_copied_and_the_head_where_the_classes_are_the_same():
    pretrained = params(1.0, classes=7) | {"pre_logits": dense(1)}
    new, note = finetune_params(params(0.0, tokens=16), pretrained, **TO_PRETRAINED)
    fitted = "fitted: position/position_embedding 1x4x2 -> 1x16x2"
    taken = "taken from runs/pretrained: embed, encoder, position"
    assert note == f"{taken}; new: head; not used: head, pre_logits; {fitted}"
    np.testing.assert_equal(new, params(1.0, tokens=16) | {"head": params(0.0)["head"]})
    fresh = params(0.0, tokens=16)
    new, note = finetune_params(fresh, params(1.0), **TO_PRETRAINED, same_classes=True)
    np.testing.assert_equal(new, params(1.0, tokens=16))
    kept = "the classes are the same: the head is kept"
    assert note == f"{taken}, head; new: nothing; {fitted}; {kept}"
    line = params(1.0, tokens=6)  # a grid that is not square is copied, not resized
    new, _ = finetune_params(params(0.0, tokens=6), line, **TO_PRETRAINED)
    np.testing.assert_equal(new["position"], line["position"])


@pytest.mark.parametrize("extra_here", [True, False])
def test_a_head_of_other_inputs_is_new(extra_here: bool):
    """The head of the same shape saw the outputs of the representation layer."""
    fresh, pretrained = params(0.0), params(1.0)
    (fresh if extra_here else pretrained)["pre_logits"] = dense(1)
    new, note = finetune_params(fresh, pretrained, **TO_PRETRAINED, same_classes=True)
    np.testing.assert_equal(new["head"], params(0.0)["head"])
    assert new["embed"]["kernel"].all() and "new: head" in note and "is kept" not in note


def test_a_text_classifier_is_kept_and_a_span_is_not():
    fresh, pretrained = (text_params(x, classifier=dense(x), span=dense(x)) for x in (0.0, 1.0))
    new, _ = finetune_params(fresh, pretrained, **TO_TEXT, same_classes=True)
    assert new["classifier"]["kernel"].all() and not new["span"]["kernel"].any()


@pytest.mark.parametrize("extra_here", [True, False])
def test_another_model_names_the_first_parameter(extra_here: bool):
    told = r"^config.init_from=runs/pretrained holds another model: embed/kernel is \[3, 5\] there "
    told += r"and \[3, 2\] here; finetune with the config.model it was trained with$"
    refuses(told, finetune_params, params(0.0), params(1.0, embed_dim=5), **TO_PRETRAINED)
    fresh, pretrained = params(0.0), params(1.0)
    more = {f"block_0{i}": {"scale": np.ones(2)} for i in (1, 2)}
    (fresh if extra_here else pretrained)["encoder"] |= more
    told = "encoder/block_01/scale is in only one of the two;"
    refuses(told, finetune_params, fresh, pretrained, **TO_PRETRAINED)


@pytest.mark.parametrize(("there", "tokens", "factor"), [(16, 17, 3.7647), (4, 65, 0.24615)])
def test_soft_experts_of_another_size_of_images(there: int, tokens: int, factor: float):
    """4 experts with p slots each: the factor that is named gives as many, p = c T / E."""
    section = SoftMoeSettings(1, 4)
    trees = [params(value) for value in (0.0, 1.0)]
    for tree, slots in zip(trees, (section.slots(tokens), there), strict=True):
        tree["encoder"]["block_00_soft_moe"] = {"mu": full(0, 2, 4, slots)}
    told = r"mu is \[.* here; for as many slots add --config.model.soft_moe.capacity_factor="
    refuses(told + f"{factor}", finetune_params, *trees, **TO_PRETRAINED, tokens=lambda: tokens)
    assert SoftMoeSettings(1, 4, capacity_factor=factor).slots(tokens) == there
    trees[1]["encoder"]["block_00_soft_moe"] = {"mu": full(0, 2, 8, there)}
    refuses("here; finetune with", finetune_params, *trees, **TO_PRETRAINED, tokens=lambda: tokens)


def test_a_model_with_a_class_token_is_another_model():
    """Its positions are no grid, which is no reason to change the size of images."""
    pretrained = params(1.0, tokens=5)
    pretrained["position"]["cls_token"] = full(1.0, 1, 1, 2)
    told = "holds another model: position/cls_token is in only one of the two; finetune with"
    refuses(told, finetune_params, params(0.0, tokens=16), pretrained, **TO_PRETRAINED)


def text_params(value: float, *, positions: int = 8, vocab_size: int = 5, **parts: dict) -> dict:
    tables = {"token": full(value, vocab_size, 2), "position": full(value, positions, 2)}
    return {"embeddings": tables, "encoder": {"norm": {"scale": full(value, 2)}}, **parts}


TO_TEXT = MappingProxyType({"model": {"name": "text_encoder"}, "source": "runs/text"})


def test_a_text_model_keeps_its_pooler_and_gets_a_new_head():
    mlm, head = {"bias": np.ones(5)}, dense(0, 2, 3)
    pretrained = text_params(1.0, pooler=dense(1), mlm=mlm, classifier=dense(1, 2, 3))
    fresh = text_params(0.0, pooler=dense(0), classifier=head)
    new, note = finetune_params(fresh, pretrained, **TO_TEXT)
    np.testing.assert_equal(new, text_params(1.0, pooler=dense(1), classifier=head))
    told = "taken from runs/text: embeddings, encoder, pooler; new: classifier; not used: "
    assert note == told + "classifier, mlm"


def test_what_the_stored_text_model_lacks_is_new():
    """A masked language model of Hugging Face has neither a pooler nor an order head."""
    fresh = text_params(0.0, pooler=dense(0), order=dense(0), mlm={"bias": np.zeros(5)})
    pretrained = text_params(1.0, mlm={"bias": np.ones(5)})
    new, note = finetune_params(fresh, pretrained, **TO_TEXT)
    assert note == "taken from runs/text: embeddings, encoder, mlm; new: order, pooler"
    assert new["mlm"]["bias"].all() and not new["pooler"]["kernel"].any()
    take = partial(finetune_params, **TO_TEXT, frozen=partial(is_frozen, freeze="backbone"))
    refuses("freeze would keep pooler random, because config.init", take, fresh, pretrained)
    pretrained["pooler"] = dense(1)
    new, _ = take(fresh, pretrained)
    assert new["pooler"]["kernel"].all()


def test_shorter_inputs_take_the_first_positions():
    """Rows beyond the vocabulary, which some tables are padded with, are left out as well."""
    pretrained = text_params(1.0, positions=3, vocab_size=4)
    pretrained["embeddings"]["position"][:] = [[0, 1], [2, 3], [4, 5]]
    new, _ = finetune_params(text_params(0.0, positions=2, vocab_size=3), pretrained, **TO_TEXT)
    np.testing.assert_array_equal(new["embeddings"]["position"], [[0, 1], [2, 3]])
    assert new["embeddings"]["token"].shape == (3, 2)
    for field in ("positions", "vocab_size"):  # a larger table here
        fresh, pretrained = (text_params(0.0, **{field: rows}) for rows in (9, 4))
        told = r"/\w+ is \[4, 2\] there and \[9, 2\] here"
        refuses(told, finetune_params, fresh, pretrained, **TO_TEXT)
