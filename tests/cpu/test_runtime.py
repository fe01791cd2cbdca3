"""The pool and the replay: threads, the GIL, float mode, memory, single ops."""

import threading
import time
from pathlib import Path

import flare_cpu
import numpy as np
import pytest

from engine.device.cpu.lower import NativeLaunch
from engine.kernels.layouts import dequantise_rows, pack_bf16, pack_q4, pack_q8
from tests.support.native import ISAS, Attention, Rows, Shape, aligned, bf16

SHAPE = Shape(heads=9, kv_heads=3)


def rows_of(count: int, shape: Shape = SHAPE) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, shape.qkv)).astype(np.float32)


def context(isa: str = ISAS[-1], threads: int = 1, arena: int = 1 << 20) -> flare_cpu.Context:
    pool = flare_cpu.ThreadPool(threads)
    return flare_cpu.Context(pool, isa, arena, 64, 64, 64, 4, 1, 1, 64, 64, 4)


def test_the_processor_features_are_named() -> None:
    found = flare_cpu.features()
    assert set(found) == {"avx2", "avx512", "amx", "neon"}
    assert not found["amx"] or found["avx512"]
    assert not found["avx512"] or found["avx2"]


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_a_pool_has_one_to_1024_threads(threads: int) -> None:
    with pytest.raises(ValueError, match="threads"):
        flare_cpu.ThreadPool(threads)


def test_more_threads_than_cores_give_the_same_bits() -> None:
    qkv = rows_of(200)
    expected = Attention(ISAS[-1], SHAPE).run([Rows(qkv, 0, (0, 1, 2, 3))])[0]
    crowded = Attention(ISAS[-1], SHAPE, threads=9)
    for _ in range(20):
        found = crowded.run([Rows(qkv, 0, (0, 1, 2, 3))])[0]
        np.testing.assert_array_equal(found, expected)


def test_idle_threads_sleep() -> None:
    """A thread that spins or yields is runnable; one that is parked runs no more."""
    attention = Attention(ISAS[-1], SHAPE, threads=4)
    attention.run([Rows(rows_of(8), 0, (0,))])
    for _ in range(400):
        time.sleep(0.02)
        if _others() == {"S"}:
            break
    before = _switches()
    time.sleep(0.2)
    assert _others() == {"S"}
    assert _switches() == before


def _others() -> set[str]:
    """States of this process's other threads (proc(5): S is asleep)."""
    stats = [(path / "stat").read_text().rpartition(")")[2].split() for path in _tasks()]
    return {fields[0] for fields in stats}


def _switches() -> dict[str, str]:
    """How often each of the other threads was put on a processor."""
    return {path.name: (path / "schedstat").read_text().split()[2] for path in _tasks()}


def _tasks() -> list[Path]:
    own = str(threading.get_native_id())
    return [path for path in Path("/proc/self/task").iterdir() if path.name != own]


def test_parked_threads_wake_up() -> None:
    attention = Attention(ISAS[-1], SHAPE, threads=3)
    qkv = rows_of(100)
    expected = attention.run([Rows(qkv, 0, (0, 1))])[0]
    for pause in (0.0, 0.0005, 0.002, 0.02):
        time.sleep(pause)
        np.testing.assert_array_equal(attention.run([Rows(qkv, 0, (0, 1))])[0], expected)


def test_a_replay_releases_the_gil() -> None:
    attention = Attention(ISAS[-1], SHAPE)
    attention.view("qkv", 320, SHAPE.qkv)[:] = rows_of(320)
    attention.fill([Rows(rows_of(320), 960, tuple(range(20)))])
    ticks, done = [0], threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        before, during = ticks[0], 0
        for _ in range(20):
            start = ticks[0]
            attention.executable.replay(320, 1, 0, 0, 0, 0)
            during = max(during, ticks[0] - start)
    finally:
        done.set()
        thread.join()
    assert before >= 0
    # Without the release a call of a few milliseconds would let no tick through.
    assert during > 2


def test_replays_from_several_threads_take_turns() -> None:
    attention = Attention(ISAS[-1], SHAPE, threads=2)
    qkv = rows_of(64)
    expected = attention.run([Rows(qkv, 0, (0,))])[0]
    errors: list[BaseException] = []

    def replay() -> None:
        try:
            for _ in range(50):
                attention.executable.replay(64, 1, 0, 0, 0, 0)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=replay) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    np.testing.assert_array_equal(attention.view("y", 64, SHAPE.q), expected)


def test_the_callers_float_mode_is_restored() -> None:
    tiny = np.float32(1e-40)
    Attention(ISAS[-1], SHAPE).run([Rows(rows_of(2), 0, (0,))])
    assert tiny * np.float32(1) == tiny
    assert np.float32(1e-30) * np.float32(1e-10) > 0


def test_untouched_cache_takes_no_memory() -> None:
    def resident() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * 4096

    before = resident()
    pool = flare_cpu.ThreadPool(1)
    big = flare_cpu.Context(pool, ISAS[-1], 4096, 8, 8, 8, 1024, 4, 8, 128, 64, 8192)
    assert big.kv_cache.nbytes == 4 * 8192 * 8 * 2 * 128 * 64 * 2
    assert resident() - before < 64 << 20


def test_views_keep_their_context_alive() -> None:
    table = context().block_tables
    table[:] = 7
    assert table.sum() == 7 * table.size


def rms_norm(isa: str, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    ctx = context(isa, threads=2)
    rows, width = x.shape
    floats, place = ctx.arena.view(np.float32), 64 * 1024
    floats[: x.size] = x.reshape(-1)
    launch: NativeLaunch = (
        "rms_norm",
        [("arena", 0), ("weight", 0)],
        [("arena", place * 4)],
        {"width": width, "eps": 1e-5, "rows": "tokens"},
    )
    executable = flare_cpu.Executable(ctx, (64, 64, 64), [launch], [aligned(weight)])
    ctx.seg_starts[:2] = [0, rows]
    executable.replay(rows, 1, rows, 1, 0, 0)
    return floats[place : place + x.size].reshape(x.shape).copy()


@pytest.mark.parametrize("width", [7, 16, 33, 64, 100, 576, 1000])
def test_rms_norm(width: int) -> None:
    random = np.random.default_rng(width)
    x = random.standard_normal((5, width)).astype(np.float32) * 3
    weight = random.standard_normal(width).astype(np.float32)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * weight
    first, *others = (rms_norm(isa, x, weight) for isa in ISAS)
    np.testing.assert_allclose(first, expected, rtol=2e-6)
    for other in others:
        np.testing.assert_array_equal(other, first)
    np.testing.assert_array_equal(rms_norm(ISAS[-1], x[2:3], weight), first[2:3])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [SHAPE, Shape(4, 2, 18), Shape(2, 1, 80)], ids=str)
def test_rope_and_the_layout_of_the_cache(isa: str, shape: Shape) -> None:
    half, count, start, blocks = shape.head_dim // 2, 70, 30, (2, 0)
    angles = np.arange(128)[:, None] / 10000 ** (np.arange(half) / half)
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    attention = Attention(isa, shape, threads=2, num_blocks=3, max_blocks=2, rope=table)
    qkv = rows_of(count, shape)
    # Rows before the first have no keys: their slots are stale, but never not finite.
    attention.run([Rows(qkv, start, blocks)])
    positions = np.arange(start, start + count)
    heads = qkv.reshape(count, -1, shape.head_dim).astype(np.float64)
    cos, sin = table[positions, None, :half], table[positions, None, half:]
    first, second = heads[..., :half], heads[..., half:]
    rotated = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=2)
    q = attention.view("q", count, shape.q).reshape(count, shape.heads, -1)
    np.testing.assert_allclose(q, rotated[:, : shape.heads], rtol=0, atol=1e-5)

    padded = -(-shape.head_dim // 32) * 32
    cache = attention.context.kv_cache.view(np.uint16).reshape(3, shape.kv_heads, 2, -1)
    keys = cache[:, :, 0].reshape(3, shape.kv_heads, padded // 2, 64, 2)
    values = cache[:, :, 1].reshape(3, shape.kv_heads, 32, padded, 2)
    k = rotated[:, shape.heads : shape.heads + shape.kv_heads].astype(np.float32)
    v = heads[:, shape.heads + shape.kv_heads :].astype(np.float32)
    for row, position in enumerate(positions):
        block, offset = blocks[position // 64], position % 64
        stored_k = keys[block, :, :, offset].reshape(shape.kv_heads, padded)[:, : shape.head_dim]
        stored_v = values[block, :, offset // 2, : shape.head_dim, offset % 2]
        as_float = (stored_v.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_array_equal(as_float, bf16(v[row]))
        k_float = (np.ascontiguousarray(stored_k).astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_allclose(k_float, k[row], rtol=2**-7, atol=1e-6)
    assert not cache[1].any()


@pytest.mark.parametrize("isa", ISAS)
def test_gather_rows(isa: str) -> None:
    ctx = context(isa, threads=2)
    floats = ctx.arena.view(np.float32)
    x = np.random.default_rng(0).standard_normal((20, 33)).astype(np.float32)
    floats[: x.size] = x.reshape(-1)
    wanted = np.array([3, 0, 19, 19, 7], np.int32)
    ctx.logit_rows[:5] = wanted
    ctx.seg_starts[:2] = [0, 20]
    launch: NativeLaunch = (
        "gather_rows",
        [("arena", 0), ("input", "logit_rows")],
        [("arena", 16384)],
        {"width": 33},
    )
    executable = flare_cpu.Executable(ctx, (64, 64, 64), [launch], [])
    executable.replay(20, 1, 20, 1, 5, 5)
    np.testing.assert_array_equal(floats[4096 : 4096 + 5 * 33].reshape(5, 33), x[wanted])
    executable.replay(20, 1, 20, 1, 0, 0)  # no logits wanted: nothing to do


@pytest.mark.parametrize("layout", ["q4p16", "q8p16", "bf16p16"])
@pytest.mark.parametrize("isa", ISAS)
def test_embed_dequantises_exactly(isa: str, layout: str) -> None:
    random = np.random.default_rng(0)
    vocab, width = 50, 96
    scales = random.standard_normal((vocab, width // 32)).astype(np.float16)
    if layout == "q4p16":
        codes = random.integers(0, 16, (vocab, width)).astype(np.uint8)
        packed = pack_q4(codes, scales, (scales * 3).astype(np.float16))
    elif layout == "q8p16":
        packed = pack_q8(random.integers(-128, 128, (vocab, width)).astype(np.int8), scales)
    else:
        values = random.standard_normal((vocab, width)).astype(np.float32)
        packed = pack_bf16((values.view(np.uint32) >> 16).astype(np.uint16))
    ctx = context(isa, threads=2)
    launch: NativeLaunch = (
        "embed",
        [("input", "token_ids"), ("weight", 0)],
        [("arena", 0)],
        {"vocab": vocab, "width": width, "layout": layout},
    )
    executable = flare_cpu.Executable(ctx, (64, 64, 64), [launch], [aligned(packed)])
    tokens = random.integers(0, vocab, 40).astype(np.int32)
    ctx.token_ids[:40] = tokens
    ctx.seg_starts[:2] = [0, 40]
    executable.replay(40, 1, 0, 0, 0, 0)
    found = ctx.arena.view(np.float32)[: 40 * width].reshape(40, width)
    np.testing.assert_array_equal(found, dequantise_rows(layout, packed, vocab, width, tokens))
