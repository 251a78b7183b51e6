# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of bench/bench_cpu.py: which bytes a step reads, ratios and shares. Nothing is
timed."""
import sys

import pytest

import sov

sys.path[:0] = [str(sov.ROOT / "bench"), str(sov.ROOT / "tools")]
import bench_cpu  # noqa: E402
import make_models as mm  # noqa: E402


@pytest.mark.parametrize("tied", [True, False])
def test_step_bytes(tmp_path, tied):
    spec = mm.Spec(tied=tied, type="Q8_0", n_embd=64, n_ff=128, n_layer=3, n_vocab=320)
    path = mm.write_model(tmp_path / "m.gguf", spec)
    if not sov.SOV.exists():
        pytest.skip(f"{sov.SOV} is not built")
    rows = 2 * 64 + 2 * 32  # q and the attention's output, k and v
    layer = (rows * 64 + 3 * 128 * 64) // 32 * 34 + 2 * 64 * 4
    expected = 3 * layer + 64 * 4 + 320 * 64 // 32 * 34
    assert bench_cpu.step_bytes(sov.SOV, path) == expected


def test_table_rows():
    class Options:
        prompt, generate, batch = 512, 128, 8

    pairs = [{"threads": 1, "bandwidth": {"4K plain": 20.0, "2M plain": 10.0},
              "rows": [["prefill", 0, [30.0, 10.0], [5.0, 40.0]], ["first", 0, [0.1], [0.4]]]},
             {"threads": 1, "bandwidth": {"4K plain": 10.0},
              "rows": [["prefill", 0, [20.0], [10.0]], ["first", 0, [0.3, 0.2], [0.4]]]},
             {"threads": 2, "bandwidth": {"4K plain": 24.0},
              "rows": [["decode", 7, [12.0], [6.0]], ["batch", 0, [80.0], [100.0]]]},
             {"threads": 2, "bandwidth": {"4K plain": 12.0},
              "rows": [["decode", 7, [12.0], [6.0]]]}]
    results = bench_cpu.collect(pairs, 1e9, Options)
    prefill, first, decode, batch = bench_cpu.table_rows(results, Options)
    assert (prefill["sov"], prefill["peer"], prefill["ratio"]) == (20.0, 10.0, 2.0)
    assert prefill["test"] == "prefill 512" and "sov_share" not in prefill
    assert decode["test"] == "decode 128 at 7" and decode["ratio"] == 2.0
    assert (decode["sov_share"], decode["peer_share"]) == (0.75, 0.375)
    assert batch["sov_share"] == pytest.approx(80 / 8 / 24) and batch["ratio"] == 0.8
    assert (first["sov"], first["peer"], first["unit"]) == (200.0, 400.0, "ms")
    assert first["ratio"] == 2.0


def test_the_models_it_makes():
    """Each name stands for one type, in all matrices, and for about 10^9 weights."""
    for kind in bench_cpu.MADE.values():
        spec = mm.Spec(**{**mm.PRESETS["bench-1b"], "type": kind})
        matrices = [tensor for tensor in mm.model_tensors(spec) if len(tensor.dims) == 2]
        assert {tensor.type for tensor in matrices} == {kind}
        assert 0.9e9 < sum(tensor.dims[0] * tensor.dims[1] for tensor in matrices) < 1.1e9
