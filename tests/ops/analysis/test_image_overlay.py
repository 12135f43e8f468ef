"""Expert choices over images: the routing of one image, and the overlay read back by colours."""

import cv2
import jax
import numpy as np
import pytest

from widenet_jax.inference.trained import open_trained
from widenet_jax.ops.analysis.captured import TokenRouting, token_routing
from widenet_jax.ops.analysis.figures import expert_colours
from widenet_jax.ops.analysis.image_overlay import (
    MOST_ROWS,
    TINT,
    draw_overlay,
    drawable,
    image_router,
    patch_grid,
)
from widenet_jax.vision.task import to_signed_range


def count(path, colour) -> int:
    """Counts the pixels near an RGB colour in [0, 1]."""
    image = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB).astype(float)
    return int((np.abs(image - 255 * np.asarray(colour)).sum(axis=-1) < 12).sum())


def routing_of(experts: list[int]) -> TokenRouting:
    """Builds the routing of 16 tokens in 2 blocks: first choices as given in block 0, expert 3 in
    block 1; second choices equal the first."""
    first = np.array([experts, [3] * 16])[:, None, :, None]
    index = np.concatenate([first, first], axis=-1)
    return TokenRouting(index, np.ones(index.shape), np.ones((2, 1, 16, 4)), index < 0)


@pytest.mark.slow
def test_one_image_is_its_own_group(digits_run):
    trained = open_trained(str(digits_run))
    image = np.random.default_rng(0).integers(0, 256, (8, 8, 1), np.uint8)
    routing = image_router(trained)(image)
    look = jax.jit(lambda x: token_routing(trained.model, trained.params, {"image": x})[1])
    expected = look(to_signed_range(np.stack([image] * 4)))  # in a group of four
    assert routing.expert_index.shape == (2, 1, 16, 2)
    # Only the first block has equal inputs: the larger group drops other choices there.
    np.testing.assert_array_equal(routing.expert_index[0], expected.expert_index[0, :1])
    assert routing.dropped.sum() == expected_drops(routing.expert_index)


def expected_drops(expert_index: np.ndarray) -> int:
    """C = 1, K = 2, E = 4: an expert keeps 16 * 2 / 4 = 8 choices of one image's 32 in a block."""
    sent = [[(block == e).sum() for e in range(4)] for block in expert_index]
    return sum(max(0, count - 8) for block in sent for count in block)


def test_tokens_on_the_grid_of_patches(digits_run):
    trained = open_trained(str(digits_run))
    grid = patch_grid(trained, np.arange(16))
    np.testing.assert_array_equal(grid[1], [4, 5, 6, 7])
    with_cls = trained.config.copy_and_resolve_references()
    with_cls.model.cls_token = "zero"
    grid = patch_grid(type(trained)(**vars(trained) | {"config": with_cls}), np.arange(17))
    np.testing.assert_array_equal(grid[0], [1, 2, 3, 4])


def test_patches_have_the_colours_of_their_experts(digits_run, tmp_path):
    """12 of 16 patches of block 0 go to expert 1, 4 to expert 0: three times as many pixels. All of
    block 1 go to expert 3: 4/3 as many as to expert 1. In a grey picture a tint is one colour."""
    trained = open_trained(str(digits_run))
    picture = np.full((8, 8, 1), 128, np.uint8)
    images = [("grey", picture, routing_of([1] * 12 + [0] * 4))]
    draw_overlay(trained, images, tmp_path / "o.png")
    tints = (1 - TINT) * 128 / 255 + TINT * expert_colours(4)
    pixels = [count(tmp_path / "o.png", tint) for tint in tints]
    assert pixels[1] / pixels[0] == pytest.approx(3, rel=0.1)
    assert pixels[3] / pixels[1] == pytest.approx(4 / 3, rel=0.1)
    assert pixels[2] == 0


def test_titles_are_whole(digits_run, tmp_path, drawn):
    """A long name keeps its suffix, and lies within the picture."""
    trained, picture = open_trained(str(digits_run)), np.full((8, 8, 1), 128, np.uint8)
    titles = ["IMG_20260714_183512_portrait_mode.jpeg\ncat 87%", "a.png\ncat 87%"]
    images = [(title, picture, routing_of([1] * 16)) for title in titles]
    for count in (1, 2):
        draw_overlay(trained, images[:count], tmp_path / "o.png")
    for figure in drawn:
        figure.draw_without_rendering()  # it was saved with more dots an inch
        assert figure.axes[0].get_title() == "IMG_2026071…it_mode.jpeg\ncat 87%"
        box = figure.axes[0].title.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1 and box.y1 < figure.bbox.y1 - 5


def test_dropped_patches_are_crossed_out(digits_run, tmp_path):
    """Also those whose expert is 4, none of four, as where experts choose."""
    trained = open_trained(str(digits_run))
    picture, routing = np.full((8, 8, 1), 255, np.uint8), routing_of([1] * 16)
    black = []
    for name, dropped in (("none.png", False), ("all.png", True)):
        lost = routing.replace(dropped=np.full(routing.dropped.shape, dropped))
        lost = lost.replace(expert_index=np.where(dropped, 4, lost.expert_index))
        draw_overlay(trained, [("", picture, lost)], tmp_path / name)
        black.append(count(tmp_path / name, (0, 0, 0)))
    assert black[1] > black[0] + 32 * 10  # 32 crosses


def test_a_picture_shows_as_many_images_as_it_has_room_for(digits_run, capsys):
    """Two blocks take one row of panels for each image."""
    trained = open_trained(str(digits_run))
    assert drawable(trained, range(MOST_ROWS), "a.png") == range(MOST_ROWS)
    assert capsys.readouterr().err == ""
    assert drawable(trained, range(1_234), "a.png") == range(MOST_ROWS)
    note = f"note: a.png shows the first {MOST_ROWS} of 1,234 images\n"
    assert capsys.readouterr().err == note
