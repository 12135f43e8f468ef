"""The HLO parser on lines as the TPU compiler writes them."""

import base64
import re

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from widenet_jax.ops.plan.hlo import hbm_bytes, kernel_grid, parse, parse_instruction

MATMUL = (
    "  ROOT %fusion.7 = bf16[16,1024]{1,0:T(8,128)(2,1)S(1)} fusion(%p.1, /*index=1*/%p.2), "
    "kind=kOutput, calls=%fused_computation.7, "
    'metadata={op_name="jit(train_step)/jvp(Model)/encoder/add" stack_frame_id=3}, '
    'backend_config={"window_config":{"estimated_cycles":"1234"}}'
)


def test_an_instruction():
    fusion = parse_instruction(MATMUL)
    assert fusion.name == "fusion.7" and fusion.opcode == "fusion" and fusion.is_root
    assert fusion.arrays == (("bf16", (16, 1024)),)
    assert fusion.operands == ("p.1", "p.2")
    assert fusion.called == {"calls": "fused_computation.7"}
    assert fusion.cycles == 1234
    assert fusion.op_name == "jit(train_step)/jvp(Model)/encoder/add"
    assert fusion.num_bytes == 16 * 1024 * 2


def test_a_tuple_of_results_with_comments_and_tilings():
    line = (
        "  %all-reduce.2 = (f32[768]{0:T(1024)}, bf16[3,4]{1,0:T(8,128)(2,1)}, /*index=2*/f32[]"
        "{:T(256)}) all-reduce(%a, %b, %c), replica_groups={{0,1},{2,3}}, to_apply=%add.1"
    )
    reduce = parse_instruction(line)
    assert reduce.opcode == "all-reduce" and not reduce.is_root and reduce.cycles is None
    assert reduce.arrays == (("f32", (768,)), ("bf16", (3, 4)), ("f32", ()))
    assert reduce.num_bytes == 768 * 4 + 12 * 2 + 4


def test_bytes_in_hbm_with_the_padding_of_tiles():
    """[16, 196, 196] is padded to [16, 200, 256], and its transpose to [16, 200, 256] as well."""
    for order in ("2,1,0", "1,2,0"):
        shape = f"bf16[16,196,196]{{{order}:T(8,128)(2,1)}}"
        assert hbm_bytes(shape) == 16 * 200 * 256 * 2
    assert hbm_bytes("f32[100]{0:T(128)}") == 128 * 4
    assert hbm_bytes("(f32[8]{0:T(256)S(1)}, u8[3,5])") == 15


def test_the_grid_of_a_kernel():
    """Lowered for a TPU, which takes none: [32, 256] in blocks of 8 rows and 128 columns."""

    def double(x_ref, y_ref):
        y_ref[...] = 2 * x_ref[...]

    x = jax.ShapeDtypeStruct((32, 256), jnp.float32)
    block = pl.BlockSpec((8, 128), lambda i, j: (i, j))
    kernel = pl.pallas_call(double, x, grid=(4, 2), in_specs=[block], out_specs=block)
    text = jax.jit(kernel).trace(x).lower(lowering_platforms=("tpu",)).as_text()
    body = re.search(r"body\W+22: \W+22([\w+/=]+)", text)[1]
    assert kernel_grid(body) == (4, 2)
    for before in ("", '"allow_input_fusion":[],'):
        config = f'{{"custom_call_config":{{{before}"body":"{body}"}}}}'
        line = f"  %y = f32[32,256] custom-call(%x), backend_config={config}"
        assert parse_instruction(line).iterations == 8


def test_the_grid_of_the_compilers_own_kernel():
    program = b"func.func @main() attributes {iteration_bounds = array<i64: 4, 4, 2, 2>, x = 1}"
    assert kernel_grid(base64.b64encode(program).decode()) == (4, 4, 2, 2)
    assert kernel_grid(base64.b64encode(b"func.func @main() {\n}").decode()) == ()


def test_an_instruction_whose_metadata_is_on_lines_of_its_own():
    """As the compiler prints kernels that carry `kernel_metadata`."""
    text = (
        "ENTRY %main (x: f32[8]) -> f32[8] {\n  %x = f32[8]{0} parameter(0)\n"
        '  %y = f32[8]{0} custom-call(%x), frontend_attributes={kernel_metadata={\n"a":"{}"\n}}, '
        'metadata={op_name="jit(f)/y"}\n  ROOT %z = f32[8]{0} negate(%y)\n}\n\n'
        "%other (x: f32[8]) -> f32[8] {\n  ROOT %x = f32[8]{0} parameter(0)\n}\n"
    )
    module = parse(text)
    assert {name: list(found) for name, found in module.computations.items()} == {
        "main": ["x", "y", "z"],
        "other": ["x"],
    }
    assert module.computations["main"]["y"].op_name == "jit(f)/y"
