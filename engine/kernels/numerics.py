"""Numerics classes: the exact rounding and accumulation order of a linear, per role.

A core uses one class per (weight, role); row invariance (docs/architecture.md) rests on it. Every
instruction-set path of a class computes the same bits.

int8_g32
    Activations are quantised per row and group of 32 along k: ``amax = max|x|``,
    ``s = amax / 127``, ``q = rint(x * (127 / amax))`` (round half to even), all in float32 with
    subnormals flushed to zero. Where s is 0 or not finite q is 0: a NaN or an infinity lives on in
    s and makes the row NaN. With ``dot`` the exact integer dot product of the stored weight codes
    and q, and ``sum`` the integer sum of q in the group, groups ascending, starting from 0:
    ``acc = fma(float(dot), d * s, acc)`` and, for layouts with minima,
    ``acc = fma(m, s * float(sum), acc)``; d and m are the group's scale and minimum, widened to
    float32. Products in parentheses are rounded to float32.
int12_g32
    As int8_g32 with twelve bits: ``s = amax / 2032`` and ``q = rint(x * (2032 / amax))``. 2032 is
    16 * 127, so that q = 16 * high + low with signed bytes: high = rint(q / 16), half to even.
    ``dot`` and ``sum`` are exact in float32. The rounding error of a value is at most amax / 4064;
    as amax is at most sqrt(32) times the group's root mean square, that of a group is at most
    8.1e-4 of it (sqrt(32) / 2032 / sqrt(12)). bfloat16's is 1.1e-3 to 2.3e-3: 2**-9 / sqrt(3) of
    values just below powers of two, 2**-8 / sqrt(3) of those just above.
bf16_g32
    Activations are rounded to bfloat16 (nearest even); the codes of a quantised weight stay exact,
    and the group's factors come after. For activations a and values v of a group of 32, T(a, v) is
    the order of TDPBF16PS from zero: ``even = fma`` chain over elements 0, 2, .. 30 starting from
    0, ``odd`` the chain over 1, 3, .. 31, ``T = 0 + (even + odd)`` (the 0 makes a zero positive).
    Groups ascending, acc starting from 0, float32 with subnormals flushed to zero:

    - with minima: ``acc = fma(16 d, T(a, 1 + code / 16), acc)``, then
      ``acc = fma(fma(-16, d, m), T(a, 1), acc)``. The sixteenth puts a code of four bits in the
      fraction of a bfloat16; 16 d is exact.
    - without minima: ``acc = fma(d, T(a, code), acc)``.

    Quantised layouts only.
bf16_t32
    Activations and weights are rounded to bfloat16 (nearest even; a quantised weight is first
    dequantised in float32 as ``fma(code, d, m)``). k is walked in blocks of 32: within a block
    ``even = fma`` chain over elements 0, 2, .. 30 starting from 0, ``odd`` the chain over 1, 3, ..
    31, then ``acc = acc + (even + odd)``; float32, subnormals flushed to zero. This is the order of
    the AMX TDPBF16PS instruction (Intel SDM volume 2), so tiles and vectors agree.
"""

from typing import Literal

NumericsClass = Literal["bf16_g32", "bf16_t32", "int12_g32", "int8_g32"]
GROUP = 32
"""Values per quantisation group, and k per bf16 block."""
KEY_TILE = 64
"""Keys per attention tile, and tokens per KV block: tiles lie at absolute positions."""
