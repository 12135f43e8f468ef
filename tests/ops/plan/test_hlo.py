"""The HLO parser on lines as the TPU compiler writes them."""

import pytest

from widenet_jax.ops.plan.hlo import parse, parse_instruction, root_of

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


def test_a_custom_call_and_a_conditional():
    call = '  %c = s32[8]{0} custom-call(%i), custom_call_target="AllocateBuffer"'
    assert parse_instruction(call).target == "AllocateBuffer"
    branch = "  %b = f32[] conditional(%i, %x, %y), branch_computations={%left, %right}"
    assert parse_instruction(branch).called == {"branch_0": "left", "branch_1": "right"}


def test_a_module():
    module = parse(
        "HloModule jit_f, is_scheduled=true\n\n"
        "%helper (p: f32[2]) -> f32[2] {\n"
        "  %p = f32[2]{0} parameter(0)\n"
        "  ROOT %n = f32[2]{0} negate(%p)\n}\n\n"
        "ENTRY %main (x: f32[2]) -> f32[2] {\n"
        "  %x = f32[2]{0} parameter(0)\n"
        "  ROOT %call = f32[2]{0} call(%x), to_apply=%helper\n}\n"
    )
    assert module.entry == "main"
    assert [i.opcode for i in module.computations["helper"].values()] == ["parameter", "negate"]
    assert root_of(module.computations["main"]).name == "call"


def test_other_text_is_refused():
    with pytest.raises(ValueError, match="ENTRY"):
        parse("module @jit_f {}")
