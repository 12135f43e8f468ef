"""Expert choices drawn over images, patch by patch and block by block."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from widenet_jax.data.blocks import read, skips
from widenet_jax.data.contract import Example
from widenet_jax.inference.over_source import open_source
from widenet_jax.ops.analysis.captured import TokenRouting, routed_blocks, token_routing
from widenet_jax.ops.analysis.figures import LUMINANCE, expert_colours
from widenet_jax.run.figures import save, shortened, subplots
from widenet_jax.trained import Trained
from widenet_jax.typing import Array

TINT = 0.55  # weight of an expert's colour over a patch
PANELS_A_ROW = 6
MOST_ROWS = 50  # of panels: they take half a minute, and a PNG has room for 189
MARKS = "fill: first expert, dot: second, cross: first dropped"
Routed = tuple[str, np.ndarray, TokenRouting]  # title, uint8 [h, w, C], its routing


def image_router(trained: Trained) -> Callable[[np.ndarray], TokenRouting]:
    """Returns a function from one image as the model takes it (uint8) to its routing (B = 1).

    Each image is its own token group, so that no other image changes its routing.

    Raises:
      BadInputError: the model has no experts.
    """
    routed_blocks(trained.model)

    @jax.jit
    def route(image: Array) -> TokenRouting:
        inputs = trained.task.inputs({"image": image[None]})
        return token_routing(trained.model, trained.params, inputs)[1]

    return lambda image: jax.device_get(route(image))


def drawable(trained: Trained, images: Sequence[Any], out: epath.PathLike) -> Sequence[Any]:
    """Returns the first images, as many as a picture shows; a note says where some are left out."""
    shown = images[: max(1, MOST_ROWS // rows_of_panels(trained))]
    if len(shown) < len(images):
        counts = f"{len(shown)} of {len(images):,} images"
        print(f"note: {epath.Path(out).name} shows the first {counts}", file=sys.stderr, flush=True)
    return shown


def rows_of_panels(trained: Trained) -> int:
    """Returns how many rows one image takes."""
    return -(-len(routed_blocks(trained.model)) // PANELS_A_ROW)


def patch_grid(trained: Trained, per_token: np.ndarray) -> np.ndarray:
    """Reshapes [T, ...] to the grid of patches [rows, columns, ...], without the CLS token."""
    height, width, _ = trained.task.image_shape
    P = trained.model.patch_size
    patches = per_token[int(trained.config.model.cls_token != "none") :]
    return patches.reshape(height // P, width // P, *per_token.shape[1:])


def draw_overlay(trained: Trained, images: Sequence[Routed], out: epath.PathLike) -> None:
    """Draws each picture, then for each block, in grey, its patches tinted by their first expert.

    A dot is the second choice; a cross marks patches whose first choice was dropped.

    Args:
      trained: the model.
      images: (title, picture, routing) of each; `vision.predict.picture_of` returns pictures,
        `image_router` routings.
      out: a PNG file.
    """
    blocks = routed_blocks(trained.model)
    rows = rows_of_panels(trained)
    columns = 1 + min(len(blocks), PANELS_A_ROW)
    size = (2.1 * columns, 2.3 * rows * len(images) + 0.8)
    figure, axes = subplots(rows * len(images), columns, size=size, squeeze=False)
    top = 0.2 / figure.get_figheight()  # inches: else the layout cuts the highest title
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - top))
    for axis in axes.flat:
        axis.axis("off")
    E = images[0][2].router_probs.shape[-1]
    for i, (title, picture, routing) in enumerate(images):
        own = axes[i * rows : (i + 1) * rows]
        own[0, 0].imshow(as_rgb(picture))
        own[0, 0].set_title("\n".join(map(shortened, title.split("\n"))), fontsize=7)
        for position, (block, axis) in enumerate(zip(blocks, own[:, 1:].flat, strict=False)):
            draw_block(axis, trained, picture, routing, position)
            axis.set_title(f"block {block}", fontsize=8)
    handles = [Patch(color=c, label=f"expert {e}") for e, c in enumerate(expert_colours(E))]
    place = {"loc": "outside lower center", "ncols": min(E, 8)}
    figure.legend(handles=handles, title=MARKS, title_fontsize=8, fontsize=8, **place)
    save(figure, out)


def draw_block(
    axis: Axes, trained: Trained, picture: np.ndarray, routing: TokenRouting, position: int
) -> None:
    """Draws one picture in one block."""
    # A token's E-th expert is none, where experts choose.
    colours = np.vstack([expert_colours(routing.router_probs.shape[-1]), np.ones(3)])
    experts = patch_grid(trained, routing.expert_index[position, 0])  # [rows, columns, K]
    dropped = patch_grid(trained, routing.dropped[position, 0])
    P = trained.model.patch_size
    tint = colours[experts[..., 0]].repeat(P, axis=0).repeat(P, axis=1)
    grey = as_rgb(picture) @ LUMINANCE / 255  # grey, so that all colour is the experts'
    axis.imshow((1 - TINT) * grey[..., None] + TINT * tint)
    y, x = (np.indices(experts.shape[:2]) + 0.5) * P - 0.5
    dot = 900 / experts.shape[0] ** 2  # in points^2; a fifth of a patch wide in a panel of 2 inches
    if experts.shape[-1] > 1:
        second = colours[experts[..., 1].ravel()]
        axis.scatter(x.ravel(), y.ravel(), s=dot, c=second, linewidths=0.3, edgecolors="white")
    lost = dropped[..., 0]
    axis.scatter(x[lost], y[lost], s=2 * dot, c="black", marker="x", linewidths=0.8)


def as_rgb(picture: np.ndarray) -> np.ndarray:
    """Broadcasts [h, w, 1 or 3] to [h, w, 3]."""
    return np.broadcast_to(picture, (*picture.shape[:2], 3))


def draw_overlay_of_source(trained: Trained, out: epath.Path, num_images: int) -> None:
    """Draws experts over random images of the source, the same images for every model.

    Where the run skips images that cannot be read, the next one is drawn in place of such an image.
    """
    source, transform = open_source(trained)
    chosen = np.random.default_rng(0).permutation(len(source))[:num_images]
    chosen = drawable(trained, chosen, out)
    route = image_router(trained)

    def routed(example: Example) -> Routed:
        picture = transform(example, np.random.default_rng(0))["image"]
        return trained.class_names[example["label"]], picture, route(picture)

    skip = skips(trained.config.data.on_bad_example)
    images = [read(source, record, routed, skip=skip)[0] for record in chosen.tolist()]
    draw_overlay(trained, images, out)
