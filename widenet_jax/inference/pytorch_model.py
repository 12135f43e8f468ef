"""An exported image classifier in PyTorch: ViT, ViT-MoE, WideNet, and looped ones.

`scripts/export.py` of widenet_jax copies this file into its directory, beside `config.json`,
`export.json`, `class_names.json` and `params.safetensors`. It needs torch and safetensors, and no
JAX. With numpy and pillow, in that directory:

    from PIL import Image
    from pytorch_model import Classifier

    model = Classifier()  # or Classifier(directory, "cuda")
    shares = model(model.prepare(Image.open("photo.jpg"))).softmax(-1)  # of logits [1, classes]
    print(model.class_names[shares.argmax()], shares.max())

The model takes float32 [B, channels, side, side] in [-1, 1]. `prepare` does to a photo what
`scripts/predict.py` of widenet_jax does, but that this resizes by OpenCV, which gives nearly the
same pixels.

Logits are computed in float32, also of files in float16, and of models trained in bfloat16, for
which `predict.py` computes in bfloat16. Each image is routed alone. A setting that this file does
not compute is refused.
"""

import json
import math
import re
from pathlib import Path

ACTIVATIONS = {
    "gelu_tanh": lambda x: x * (0.5 + 0.5 * (0.7978845608028654 * (x + 0.044715 * x**3)).tanh()),
    "gelu": lambda x: x * (0.5 + 0.5 * (x / math.sqrt(2)).erf()),
    "relu": lambda x: x.relu(),
}
# The settings that this file computes; others are refused. Fields with any value have no effect on
# logits, are read below, or show in the parameters or in the blocks of `export.json`.
COVERED = (
    r"task\.name=classification",
    r"model\.(name=vision_transformer|ffn=(mlp|moe)|norm=layer|(moe|soft_moe)=None)",
    r"model\.(cls_token=(learned|zero|none)|pool=(token|mean)|norm_position=(pre|post))",
    rf"model\.(moe\.)?activation=({'|'.join(ACTIVATIONS)})",
    r"model\.(embed_dim|mlp_dim|patch_size|pre_logits|norm_epsilon|ffn_bias|ffn_blocks|drop_path)=.*",
    r"model\.(ffn_output_activation|routing_groups|kernel_init|dtype|unroll|remat|dropout)=.*",
    r"model\.adapter\.(rank=0|tie=\w+|alpha=.*)",
    r"model\.attention\.(name=full|rope=0(\.0)?|qk_norm=False)",
    r"model\.attention\.(num_heads|head_dim|use_bias|implementation)=.*",
    r"model\.moe\.(priority=token_order|shared_experts=0|router\.(name=top_k|noise_std=.*))",
    r"model\.moe\.(mlp_dim|num_experts|num_selected_experts|use_bias|capacity_\w+)=.*",
    r"model\.moe\.(examples_per_group|dispatch|output_dropout|losses\.\w+)=.*",
    r"model\.loop\.(prelude|core|coda|routing|residual_scale|tie\.\w+|counts\.\w+)=.*",
    r"model\.loop\.(inject=none|start=prelude|condition=none|embed=False|state_norm=False)",
    r"model\.loop\.exit\.(loss=last|rule=none|entropy=.*|threshold=.*)",
)


def uncovered(config):
    """Returns the first setting of a config that this file does not compute; "" for none."""

    def settings(place, value):
        if not isinstance(value, dict):
            return [f"{place}={value}"]
        return [one for name in value for one in settings(f"{place}.{name}", value[name])]

    given = [f"task.name={config['task']['name']}", *settings("model", config["model"])]
    given += [f"imports={file}" for file in config.get("imports", ())]  # the user's own parts
    odd = [one for one in given if not re.fullmatch("|".join(COVERED), one)]
    return f"config.{odd[0]}" if odd else ""


def eight_bits(photo):
    """Returns an image of Pillow with the upper 8 of 16 bits, which `convert` would clip."""
    from PIL import Image

    if photo.mode in ("I", "F"):
        raise ValueError(
            f"pixels of Pillow's mode {photo.mode} have no known range: use 8 or 16 bits"
        )
    if not photo.mode.startswith("I;16"):
        return photo
    upper = photo.tobytes()[photo.mode != "I;16B" :: 2]
    return Image.frombytes("L", photo.size, upper)


class Classifier:
    """An exported classifier of images.

    Attributes:
      config: of its run.
      side: of an image, in pixels.
      blocks: the scopes of each block's parameters, in the order in which blocks run.
      params: the parameters by name, float32.
      channels: of an image.
      class_names: label k is class_names[k].
    """

    def __init__(self, folder=Path(__file__).parent, device="cpu"):
        from safetensors.torch import load_file

        self.config, record, self.class_names = (
            json.loads(Path(folder, f"{name}.json").read_text(encoding="utf-8"))
            for name in ("config", "export", "class_names")
        )
        lacking = "" if "blocks" in record else "an older export.json; export the model again"
        if problem := uncovered(self.config) or lacking:
            raise ValueError(f"{folder}: pytorch_model.py does not compute {problem}")
        self.side = self.config["data"]["image_size"]
        self.blocks, self.slots = record["blocks"], record["slots"]
        arrays = load_file(Path(folder, "params.safetensors"), device=device)
        self.params = {name.removeprefix("encoder/"): x.float() for name, x in arrays.items()}
        self.channels = self.params["embed/projection/kernel"].shape[2]

    def prepare(self, photo):
        """Returns the pixels [1, channels, side, side] of an image of Pillow."""
        import torch
        from PIL import Image, ImageOps

        rules, side = self.config["augment"], self.side
        photo = ImageOps.exif_transpose(photo) if rules["exif_orientation"] else photo
        photo = eight_bits(photo).convert("L" if self.channels == 1 else "RGB")
        size = side, side
        if rules["eval_crop"] == "central":
            short = round(side / rules["eval_crop_fraction"])
            size = [round(x * (short / min(photo.size))) for x in photo.size]
        shrinks = math.prod(size) < math.prod(photo.size)
        photo = photo.resize(size, getattr(Image.Resampling, "BOX" if shrinks else "BILINEAR"))
        left, top = ((x - side) // 2 for x in size)
        photo = photo.crop((left, top, left + side, top + side))
        pixels = torch.tensor(bytearray(photo.tobytes())).reshape(1, side, side, self.channels)
        return pixels.permute(0, 3, 1, 2) / 127.5 - 1

    def __call__(self, images):
        """Returns logits [B, classes] of images [B, channels, side, side]."""
        model, params, side = self.config["model"], self.params, self.side
        kernel, P = params["embed/projection/kernel"], model["patch_size"]  # [P, P, channels, D]
        if images.shape[1:] != (self.channels, side, side):
            raise ValueError(f"images must be [B, {self.channels}, {side}, {side}] in [-1, 1]")
        patches = images.unfold(2, P, P).unfold(3, P, P)  # [B, channels, h, w, P, P]
        patches = patches.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2) @ kernel.flatten(0, 2)
        x = params["position/position_embedding"].repeat(len(images), 1, 1)  # [B, T, D]
        x[:, -patches.shape[1] :] += patches + params["embed/projection/bias"]
        x[:, :1] += params.get("position/cls_token", 0)
        places = [self.norm, lambda x, scope: x]
        before, after = places if model.get("norm_position", "pre") == "pre" else places[::-1]
        routed = {}
        for index, block in enumerate(self.blocks):
            y = self.attention(before(x, block["norm_attention"]), block["attention"])
            x = after(x + block["scale"] * y, block["norm_attention"])
            y, scope = before(x, block["norm_ffn"]), block["ffn"]
            if f"{scope}/experts/wi/kernel" in params:
                router, follows = block.get("router", f"{scope}/router"), block["follows"]
                routed[index] = self.gates(y, router) if follows is None else routed[follows]
                y = self.experts(y, routed[index], f"{scope}/experts")
            else:
                y = self.mlp(y, scope, model.get("activation", "gelu_tanh"))
            x = after(x + block["scale"] * y, block["norm_ffn"])
        x = before(x, "norm_out")
        x = x[:, 0] if model["pool"] == "token" else x.mean(1)
        x = self.dense(x, "pre_logits").tanh() if model["pre_logits"] else x
        return self.dense(x, "head")

    def norm(self, x, scope):
        """Applies LayerNorm."""
        x = x - x.mean(-1, keepdim=True)
        variance = x.square().mean(-1, keepdim=True) + self.config["model"].get(
            "norm_epsilon", 1e-6
        )
        return x / variance.sqrt() * self.params[f"{scope}/scale"] + self.params[f"{scope}/bias"]

    def dense(self, x, scope, expert=...):
        """Applies a linear map, of one expert where there are several."""
        y, bias = x @ self.params[f"{scope}/kernel"][expert], self.params.get(f"{scope}/bias")
        return y if bias is None else y + bias[expert]

    def attention(self, x, scope):
        """Applies multi-head attention among the tokens of each image."""
        count = self.config["model"]["attention"]["num_heads"]
        heads = (self.dense(x, f"{scope}/{part}") for part in ("query", "key", "value"))
        q, k, v = (y.unflatten(2, (count, -1)).transpose(1, 2) for y in heads)  # [B, N, T, H]
        weights = (q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])).softmax(-1)
        return self.dense((weights @ v).transpose(1, 2).flatten(2), f"{scope}/out")

    def mlp(self, x, scope, activation, expert=...):
        """Applies a feed-forward, of one expert where there are several."""
        f = ACTIVATIONS[activation]
        y = self.dense(f(self.dense(x, f"{scope}/wi", expert)), f"{scope}/wo", expert)
        return f(y) if self.config["model"].get("ffn_output_activation") else y

    def gates(self, x, scope):
        """Routes tokens [B, T, D] to K experts each; [B, T, E], 0 where not chosen or full.

        Of equal probabilities the lower expert is chosen. Each expert has slots for the first
        tokens of an image that choose it.
        """
        probs = (x @ self.params[f"{scope}/kernel"]).softmax(-1)
        order = probs.sort(dim=-1, descending=True, stable=True)[1]
        best = order[..., : self.config["model"]["moe"]["num_selected_experts"]]
        chosen = probs.new_zeros(probs.shape).scatter(-1, best, 1.0)
        return probs * chosen * (chosen.cumsum(1) <= self.slots)

    def experts(self, x, gates, scope):
        """Returns the sum of each token's experts, weighted by their gates."""
        y, model = x.new_zeros(x.shape), self.config["model"]
        activation = {"activation": "gelu_tanh", **model, **model["moe"]}["activation"]
        for expert in range(gates.shape[-1]):
            b, t = gates[..., expert].nonzero(as_tuple=True)
            y[b, t] += gates[b, t, expert, None] * self.mlp(x[b, t], scope, activation, expert)
        return y
