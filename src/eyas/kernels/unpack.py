"""The numbers of packed weights, from words to values in the registers that hold them.

Promises: values are exact. Their order within STEP columns is that of `ops.dequantise.arrange`, so that
nothing moves between threads: the 16 bytes that a thread reads are its part of the left operand of
matrix instructions, and the numbers of a word become pairs of 16 bits by shifts and masks.
Does not know: scales of FP8 and of integers, which the sums are multiplied by.

How: the bits of an FP8 or FP4 number, placed where a number of 16 bits has its sign and the end of its
exponent, are that number times a power of two, subnormal ones too. One multiplication of a pair undoes
it. An integer in the last bits of 128 (bfloat16) or 1024 (float16) is added to it, and one subtraction
of a pair takes that and the zero point away.

Legend: O rows of a weight, W words, I columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

IS_COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)
"""Whether kernels are compiled; the interpreter has no instructions of a device."""
FP4_UNIT = tl.constexpr(2.0**126)
"""An FP4 number in the upper bits of a float32 is so many times too small."""
FP4_SHRUNK = tl.constexpr(2.0**64)
"""Values of FP4 in bfloat16 are so many times too small, for scales up to 2^65 to have a place."""


def _fp8_pairs(size: int, unit: str, kind: str) -> str:
    """The instructions that make the pairs of numbers 0 and 1 of both halves of a word.

    size: how many places the kind's end of an exponent is above bfloat16's. unit: what a pair is
    multiplied by. kind: of the pair.
    """
    sizes = f"0x{0x07F0 << size:04X}{0x07F0 << size:04X}"
    both = f"0x{0x8000 | 0x07F0 << size:04X}{0x8000 | 0x07F0 << size:04X}"
    top = f"0x{0x0700 << size:04X}{0x0700 << size:04X}"
    lines = [
        ".reg .b32 first, second, part;",
        f"shl.b32 first, $4, {4 + size};",
        f"shr.u32 part, $4, {4 - size};",
        f"lop3.b32 first, part, first, {top}, 0xE4;",  # where the mask is set bits of part
    ]
    if size == 0:
        lines += [f"and.b32 first, first, {both};", f"and.b32 second, $4, {both};"]
    else:
        lines += [
            "shl.b32 part, $4, 4;",
            f"lop3.b32 first, first, part, {sizes}, 0xE4;",
            f"and.b32 first, first, {both};",
            f"shl.b32 part, $4, {size};",
            f"lop3.b32 second, part, $4, {sizes}, 0xE4;",
            f"and.b32 second, second, {both};",
        ]
    lines += [
        f"mov.b32 part, {unit};",
        f"mul.rn.{kind} first, first, part;",
        f"mul.rn.{kind} second, second, part;",
        "mov.b32 {$0, $1}, first;",
        "mov.b32 {$2, $3}, second;",
    ]
    return "\n".join(("{", *lines, "}"))


FP8_TO_BFLOAT16 = tl.constexpr(_fp8_pairs(0, "0x7B807B80", "bf16x2"))
FP8_TO_FLOAT16 = tl.constexpr(_fp8_pairs(3, "0x5C005C00", "f16x2"))


def _fp4_pairs() -> str:
    """The instructions that make the four pairs of a word, each times its power of two: operands 9 to
    12, one for each block, in both halves. The bits of three numbers are stored as bfloat16 has them,
    a shift apart; of the fourth one bit alone stands elsewhere (`ops.dequantise.fp4_bytes`)."""
    both = "0x81C081C0"
    lines = [
        ".reg .b32 bits, pair;",
        "shl.b32 bits, $8, 6;",
        f"and.b32 pair, bits, {both};",
        *_scaled(0),
        "shl.b32 bits, $8, 2;",
        f"and.b32 pair, bits, {both};",
        *_scaled(1),
        "shf.r.wrap.b32 bits, $8, $8, 4;",
        f"and.b32 pair, bits, {both};",
        *_scaled(2),
        "shr.u32 bits, $8, 8;",
        "lop3.b32 bits, bits, $8, 0x00400040, 0xE4;",  # where the mask is set bits, else the word
        f"and.b32 pair, bits, {both};",
        *_scaled(3),
    ]
    return "\n".join(("{", *lines, "}"))


def _scaled(slot: int) -> tuple[str, str]:
    return (
        f"mul.rn.bf16x2 pair, pair, ${9 + slot};",
        f"mov.b32 {{${2 * slot}, ${2 * slot + 1}}}, pair;",
    )


def _int4_pairs(unit: str, kind: str) -> str:
    """The instructions that make the four pairs of a word, less operand 9: a pair of zero points that
    `unit` is added to. unit: a pair of numbers whose last bits are ones, so that an integer in these
    bits is added to them."""
    lines = [".reg .b32 bits, pair;"]
    for slot in range(4):
        lines += [f"shr.u32 bits, $8, {4 * slot};"] if slot else []
        lines += [
            f"lop3.b32 pair, {'bits' if slot else '$8'}, 0x000F000F, {unit}, 0xEA;",  # and, or
            f"sub.rn.{kind} pair, pair, $9;",
            f"mov.b32 {{${2 * slot}, ${2 * slot + 1}}}, pair;",
        ]
    return "\n".join(("{", *lines, "}"))


FP4_TO_BFLOAT16 = tl.constexpr(_fp4_pairs())
INT4_TO_BFLOAT16 = tl.constexpr(_int4_pairs("0x43004300", "bf16x2"))
INT4_TO_FLOAT16 = tl.constexpr(_int4_pairs("0x64006400", "f16x2"))
TWO_PAIRS = tl.constexpr("=h,=h,=h,=h,r")
FP4_OPERANDS = tl.constexpr("=h,=h,=h,=h,=h,=h,=h,=h,r,r,r,r,r")
INT4_OPERANDS = tl.constexpr("=h,=h,=h,=h,=h,=h,=h,=h,r,r")


@triton.jit
def fp8_number(word, slot: tl.constexpr, half: tl.constexpr, dtype: tl.constexpr):
    """A number of a half of words (`ops.dequantise.fp8_pairs` has their bits)."""
    pair = word >> (16 * half)
    if slot == 0:
        bits = ((pair >> 4) & 0x80) | ((pair >> 8) & 0x70) | (pair & 0x0F)
    else:
        bits = ((pair >> 8) & 0x80) | ((pair >> 4) & 0x7F)
    return bits.to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32).to(dtype)


@triton.jit
def fp8_numbers(word_OW, dtype: tl.constexpr):
    """The numbers of words, [O, 4 W] in the order of the columns. W: a multiple of 16."""
    if IS_COMPILED and dtype == tl.bfloat16:
        a, b, c, d = tl.inline_asm_elementwise(
            FP8_TO_BFLOAT16, TWO_PAIRS, [word_OW], dtype=(tl.bfloat16,) * 4, is_pure=True, pack=1
        )
    elif IS_COMPILED and dtype == tl.float16:
        a, b, c, d = tl.inline_asm_elementwise(
            FP8_TO_FLOAT16, TWO_PAIRS, [word_OW], dtype=(tl.float16,) * 4, is_pure=True, pack=1
        )
    else:
        a, b = fp8_number(word_OW, 0, 0, dtype), fp8_number(word_OW, 0, 1, dtype)
        c, d = fp8_number(word_OW, 1, 0, dtype), fp8_number(word_OW, 1, 1, dtype)
    rows: tl.constexpr = word_OW.shape[0]
    words: tl.constexpr = word_OW.shape[1]
    pairs = tl.join(tl.join(a, c), tl.join(b, d))
    places = tl.reshape(pairs, (rows, words // 16, 4, 4, 2, 2))
    return tl.reshape(tl.permute(places, (0, 1, 3, 4, 2, 5)), (rows, 4 * words))


@triton.jit
def fp4_scale(word, place: tl.constexpr):
    """The power of two in a byte of a word, float32."""
    exponent = (word >> (8 * place)) & 0xFF
    smallest = 0x00400000  # 2^-127, whose exponent float32 has no bits for
    bits = tl.where(exponent == 0, smallest, exponent << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def fp4_power(word, place: tl.constexpr):
    """The power of two in a byte of a word, as two bfloat16 times FP4's unit over FP4_SHRUNK."""
    return ((word >> (8 * place)) & 0xFF) * 0x00800080 + 0x1F001F00


@triton.jit
def fp4_value(word_OW, exponents_O1, slot: tl.constexpr, half: tl.constexpr, dtype: tl.constexpr):
    """The values of the numbers in one place of words (`ops.dequantise.fp4_bytes` has their bits)."""
    number = word_OW >> (16 * half)
    if slot == 3:
        sign, size = number >> 15, ((number >> 6) & 6) | ((number >> 14) & 1)
    elif slot == 2:
        sign, size = word_OW >> (16 * (1 - half) + 3), (number >> 10) & 7
    else:
        sign, size = number >> (9 + 4 * slot), (number >> (4 * slot)) & 7
    bits = (sign << 31) | (size << 22)
    value = bits.to(tl.float32, bitcast=True) * FP4_UNIT * fp4_scale(exponents_O1, slot)
    return value.to(dtype)


@triton.jit
def fp4_values(word_OW, exponents_O1, dtype: tl.constexpr):
    """The values of words, [O, 8 W] in the order of the columns, in bfloat16 divided by FP4_SHRUNK.
    exponents_O1: of the blocks of 32 columns. W: 16."""
    if IS_COMPILED and dtype == tl.bfloat16:
        a, b, c, d, e, f, g, h = tl.inline_asm_elementwise(
            FP4_TO_BFLOAT16,
            FP4_OPERANDS,
            [
                word_OW,
                fp4_power(exponents_O1, 0),
                fp4_power(exponents_O1, 1),
                fp4_power(exponents_O1, 2),
                fp4_power(exponents_O1, 3),
            ],
            dtype=(tl.bfloat16,) * 8,
            is_pure=True,
            pack=1,
        )
    else:
        a = fp4_value(word_OW, exponents_O1, 0, 0, dtype)
        b = fp4_value(word_OW, exponents_O1, 0, 1, dtype)
        c = fp4_value(word_OW, exponents_O1, 1, 0, dtype)
        d = fp4_value(word_OW, exponents_O1, 1, 1, dtype)
        e = fp4_value(word_OW, exponents_O1, 2, 0, dtype)
        f = fp4_value(word_OW, exponents_O1, 2, 1, dtype)
        g = fp4_value(word_OW, exponents_O1, 3, 0, dtype)
        h = fp4_value(word_OW, exponents_O1, 3, 1, dtype)
    return of_four_pairs(a, b, c, d, e, f, g, h)


@triton.jit
def int4_number(word_OW, scale_O1, slot: tl.constexpr, half: tl.constexpr, dtype: tl.constexpr):
    """Integers less their zero points, in one place of words."""
    number = (word_OW >> (16 * half + 4 * slot)) & 15
    return (number - (scale_O1 >> 16)).to(dtype)


@triton.jit
def int4_numbers(word_OW, scale_O1, dtype: tl.constexpr):
    """Integers less their zero points, [O, 8 W] in the order of the columns. scale_O1: words whose
    upper halves are zero points. W: 16."""
    if IS_COMPILED and dtype == tl.bfloat16:
        zeros_O1 = (scale_O1 >> 16) * 0x00010001 + 0x43004300
        a, b, c, d, e, f, g, h = tl.inline_asm_elementwise(
            INT4_TO_BFLOAT16, INT4_OPERANDS, [word_OW, zeros_O1],
            dtype=(tl.bfloat16,) * 8, is_pure=True, pack=1,
        )  # fmt: skip
    elif IS_COMPILED and dtype == tl.float16:
        zeros_O1 = (scale_O1 >> 16) * 0x00010001 + 0x64006400
        a, b, c, d, e, f, g, h = tl.inline_asm_elementwise(
            INT4_TO_FLOAT16, INT4_OPERANDS, [word_OW, zeros_O1],
            dtype=(tl.float16,) * 8, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        a = int4_number(word_OW, scale_O1, 0, 0, dtype)
        b = int4_number(word_OW, scale_O1, 0, 1, dtype)
        c = int4_number(word_OW, scale_O1, 1, 0, dtype)
        d = int4_number(word_OW, scale_O1, 1, 1, dtype)
        e = int4_number(word_OW, scale_O1, 2, 0, dtype)
        f = int4_number(word_OW, scale_O1, 2, 1, dtype)
        g = int4_number(word_OW, scale_O1, 3, 0, dtype)
        h = int4_number(word_OW, scale_O1, 3, 1, dtype)
    return of_four_pairs(a, b, c, d, e, f, g, h)


@triton.jit
def int4_scale(scale_O1, SCALE: tl.constexpr):
    """The float32 scales in the lower halves of words."""
    if SCALE == "bfloat16":
        return (scale_O1 << 16).to(tl.float32, bitcast=True)
    half = (scale_O1 & 0xFFFF).to(tl.int16)
    return half.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def of_four_pairs(a, b, c, d, e, f, g, h):
    """The numbers of words of four pairs, [O, 8 W] in the order of the columns. W: 16."""
    rows: tl.constexpr = a.shape[0]
    first = tl.join(tl.join(a, e), tl.join(c, g))
    second = tl.join(tl.join(b, f), tl.join(d, h))
    places = tl.reshape(tl.join(first, second), (rows, 4, 4, 2, 2, 2))
    return tl.reshape(tl.permute(places, (0, 3, 4, 2, 1, 5)), (rows, 128))
