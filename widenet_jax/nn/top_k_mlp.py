"""The dense feed-forward layer of which each token uses the K largest hidden units."""

from widenet_jax.errors import BadInputError, check_range
from widenet_jax.nn.mlp import Mlp
from widenet_jax.nn.selection import keep_largest
from widenet_jax.typing import Array


class TopKMlp(Mlp, kw_only=True):
    """y = keep_K(relu(x W_i + b_i)) W_o + b_o (Csordás et al. 2023, section 3.1).

    keep_K sets all but the K largest of a token's hidden units to 0, after the dropout of the
    hidden layer; of equal ones those with the lower index are kept, and the gradient passes through
    them alone. It costs as much as the dense layer: it shows how few units would do.
    Differs from the paper: nothing; the norms of W_o's rows do not weight the choice.

    Attributes:
      num_active: K, 1 to F; F is the dense layer.
      The rest: see `layers.mlp.Mlp`; the activation must be "relu".
    """

    num_active: int

    def select(self, hidden: Array) -> Array:
        """Keeps the K largest of a token's hidden units."""
        section = "config.model.top_k_mlp"
        check_range(f"{section}.num_active", self.num_active, 1, self.mlp_dim)
        if self.activation != "relu":
            raise BadInputError(
                f"{section} keeps the largest of units that are not negative: set "
                f"{section}.activation=relu in place of {self.activation}"
            )
        return keep_largest(hidden, self.num_active)

    def forward_flops(self, B: int, T: int, D: int) -> int:
        """Returns the FLOPs: the output layer needs the K largest units only."""
        return B * T * 2 * D * (self.mlp_dim + self.num_active)
