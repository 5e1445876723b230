"""Compiled digests of cells (numba, the extra ``fast``): the canonical text of a number, and
BLAKE2b of a text, a cell at a time.

Imported by ``tasks.data.split`` alone, which keeps to the slow way whatever is not written here:
the two agree bit for bit.

Shortest decimals after Giulietti, The Schubfach way to render doubles (2021), as far as canonical
texts have no exponent: from 1e-4 up to 2^53. BLAKE2b: RFC 7693.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from dpcore.objective.kernels import jit, part

# Numbers from here to 2^53 are written; smaller ones have texts of many zeros.
LEAST, WHOLE = 1e-4, 2.0**53
DEEPEST = 21  # more powers of ten than numbers in that range ask for
LONGEST = 128  # bytes of a block


def _floor_log2_pow10(k: int) -> int:
    return (10**k).bit_length() - 1


def _powers() -> np.ndarray:
    """10^k for k from 0 as 126 bits, rounded up: (k, upper and lower 63 bits)."""
    found = np.zeros((DEEPEST, 2), np.uint64)
    for k in range(DEEPEST):
        shift = _floor_log2_pow10(k) - 125
        g = 10**k * 2**-shift + 1
        found[k] = g >> 63, g & (2**63 - 1)
    return found


POWERS = _powers()
LOG2 = np.array([_floor_log2_pow10(k) for k in range(DEEPEST)])
IV = np.array(
    [
        0x6A09E667F3BCC908,
        0xBB67AE8584CAA73B,
        0x3C6EF372FE94F82B,
        0xA54FF53A5F1D36F1,
        0x510E527FADE682D1,
        0x9B05688C2B3E6C1F,
        0x1F83D9ABFB41BD6B,
        0x5BE0CD19137E2179,
    ],
    np.uint64,
)
SIGMA = np.array(
    [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
        [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
        [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
        [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
        [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
        [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
        [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
        [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
        [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
    ],
    np.uint8,
)


def state_of(key: bytes, nothing: int) -> np.ndarray:
    """The state of BLAKE2b before a text, for digests of 8 bytes keyed by ``key`` (at most 64
    bytes), how many bytes it has seen, and the digest of no text, of which a key is the last
    block: (10,).
    """
    found = np.zeros(10, np.uint64)
    found[9] = nothing
    found[:8] = IV
    found[0] ^= np.uint64(0x01010000 ^ (len(key) << 8) ^ 8)
    if key:
        block = np.frombuffer(bytearray(key.ljust(LONGEST, b"\0")), np.uint64)
        compress(found, block, np.uint64(LONGEST), np.uint64(0))
        found[8] = LONGEST
    return found


@part
def _mix(a, b, c, d, x, y):
    a = a + b + x
    d = d ^ a
    d = (d >> np.uint64(32)) | (d << np.uint64(32))
    c = c + d
    b = b ^ c
    b = (b >> np.uint64(24)) | (b << np.uint64(40))
    a = a + b + y
    d = d ^ a
    d = (d >> np.uint64(16)) | (d << np.uint64(48))
    c = c + d
    b = b ^ c
    b = (b >> np.uint64(63)) | (b << np.uint64(1))
    return a, b, c, d


@jit
def compress(h, m, seen, last):
    """Take the block ``m`` (16,) into the state ``h``, of which ``seen`` bytes end with it; whether
    it is the ``last``, as a number, since a literal truth would be compiled by itself.
    """
    v0, v1, v2, v3 = h[0], h[1], h[2], h[3]
    v4, v5, v6, v7 = h[4], h[5], h[6], h[7]
    v8, v9, v10, v11 = IV[0], IV[1], IV[2], IV[3]
    v12, v13, v14, v15 = IV[4] ^ seen, IV[5], IV[6], IV[7]
    if last:
        v14 = ~v14
    for r in range(12):
        s = SIGMA[r]
        v0, v4, v8, v12 = _mix(v0, v4, v8, v12, m[s[0]], m[s[1]])
        v1, v5, v9, v13 = _mix(v1, v5, v9, v13, m[s[2]], m[s[3]])
        v2, v6, v10, v14 = _mix(v2, v6, v10, v14, m[s[4]], m[s[5]])
        v3, v7, v11, v15 = _mix(v3, v7, v11, v15, m[s[6]], m[s[7]])
        v0, v5, v10, v15 = _mix(v0, v5, v10, v15, m[s[8]], m[s[9]])
        v1, v6, v11, v12 = _mix(v1, v6, v11, v12, m[s[10]], m[s[11]])
        v2, v7, v8, v13 = _mix(v2, v7, v8, v13, m[s[12]], m[s[13]])
        v3, v4, v9, v14 = _mix(v3, v4, v9, v14, m[s[14]], m[s[15]])
    h[0] ^= v0 ^ v8
    h[1] ^= v1 ^ v9
    h[2] ^= v2 ^ v10
    h[3] ^= v3 ^ v11
    h[4] ^= v4 ^ v12
    h[5] ^= v5 ^ v13
    h[6] ^= v6 ^ v14
    h[7] ^= v7 ^ v15


@part
def _swapped(x):
    """The bytes of ``x`` in the other order."""
    found = np.uint64(0)
    for k in range(8):
        found = (found << np.uint64(8)) | ((x >> np.uint64(8 * k)) & np.uint64(255))
    return found


@part
def _ended(state, h, m, length):
    """The digest of a text of one block, as a number."""
    for k in range(8):
        h[k] = state[k]
    compress(h, m, state[8] + np.uint64(length), np.uint64(1))
    return _swapped(h[0])


@jit
def text_digests(text, ends, state, out):
    """Digests of the texts that end in ``text`` (bytes) at ``ends``."""
    buffer, h = np.zeros(LONGEST, np.uint8), np.zeros(8, np.uint64)
    m = buffer.view(np.uint64)
    start = 0
    for i in range(len(ends)):
        if ends[i] == start:
            out[i] = state[9]
            continue
        for k in range(8):
            h[k] = state[k]
        seen = state[8]
        while ends[i] - start > LONGEST:
            for k in range(LONGEST):
                buffer[k] = text[start + k]
            start += LONGEST
            seen += np.uint64(LONGEST)
            compress(h, m, seen, np.uint64(0))
        length = ends[i] - start
        for k in range(LONGEST):
            buffer[k] = text[start + k] if k < length else 0
        compress(h, m, seen + np.uint64(length), np.uint64(1))
        out[i] = _swapped(h[0])
        start = ends[i]


@part
def _write(buffer, place, value, least):
    """Write a whole number in at least ``least`` digits from ``place`` on; where it ends."""
    count, rest = 1, value // np.uint64(10)
    while rest:
        count += 1
        rest = rest // np.uint64(10)
    count = max(count, least)
    for k in range(place + count - 1, place - 1, -1):
        rest = value // np.uint64(10)
        buffer[k] = np.uint8(48) + np.uint8(value - rest * np.uint64(10))
        value = rest
    return place + count


@part
def _high(a, b):
    """The upper half of a product of 64 bits by 64."""
    mask = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    a1, a0, b1, b0 = a >> half, a & mask, b >> half, b & mask
    middle = a1 * b0 + ((a0 * b0) >> half)
    other = a0 * b1 + (middle & mask)
    return a1 * b1 + (middle >> half) + (other >> half)


@part
def _rounded(k, c):
    """c 10^k to odd, after the scale of ``POWERS``."""
    g1, g0 = POWERS[k, 0], POWERS[k, 1]
    mask = np.uint64(0x7FFFFFFFFFFFFFFF)
    z = ((g1 * c) >> np.uint64(1)) + _high(g0, c)
    w = _high(g1, c) + (z >> np.uint64(63))
    return w | (((z & mask) + mask) >> np.uint64(63))


@part
def shortest(c, q, least):
    """The decimal of fewest digits nearest to c 2^q among those that are read as it: digits and
    how many of them are decimals; c = ``least`` is a power of two.
    """
    out = c & np.uint64(1)
    one, two = np.uint64(1), np.uint64(2)
    near = two
    # floor(log10(2^q)), and that of 3/4 2^q
    k = int(np.floor(q * 0.30102999566398120))
    if c == least:
        near = one
        k = int(np.floor(q * 0.30102999566398120 - 0.12493873660829995))
    h = np.uint64(q + LOG2[-k] + 2)
    cb = c << two
    vb = _rounded(-k, cb << h)
    vbl = _rounded(-k, (cb - near) << h)
    vbr = _rounded(-k, (cb + two) << h)
    s = vb >> two
    ten = np.uint64(10)
    low = (s // ten) * ten
    high = low + ten
    under, over = vbl + out <= low << two, (high << two) + out <= vbr
    if under != over:
        return low if under else high, -k
    t = s + one
    under, over = vbl + out <= s << two, (t << two) + out <= vbr
    if under != over:
        return s if under else t, -k
    middle = (s + t) << one
    return s if vb < middle or (vb == middle and s & one == 0) else t, -k


@part
def _decimal(buffer, place, digits, decimals):
    """Write ``digits`` with as many ``decimals`` as are not 0; where it ends."""
    ten = np.uint64(10)
    while digits % ten == 0:
        digits = digits // ten
        decimals -= 1
    scale = np.uint64(1)
    for _ in range(decimals):
        scale *= ten
    whole = digits // scale
    place = _write(buffer, place, whole, 1)
    buffer[place] = 46
    return _write(buffer, place + 1, digits - whole * scale, decimals)


@jit
def number_digests(values, bits, bias, mantissa, state, out, left):
    """Digests of floating-point numbers, with the mantissa of ``mantissa`` bits in ``bits``; of
    no number that of no text. ``left`` marks what has another text.
    """
    buffer, h = np.zeros(LONGEST, np.uint8), np.zeros(8, np.uint64)
    m = buffer.view(np.uint64)
    hidden = np.uint64(1) << np.uint64(mantissa)
    before = 0
    for i in range(len(values)):
        value = values[i]
        if value != value:
            out[i] = state[9]
            continue
        size = abs(value)
        if size >= WHOLE or (size < LEAST and size > 0):
            left[i] = True
            continue
        end = 0
        if value < 0:
            buffer[0] = 45
            end = 1
        whole = np.uint64(size)
        if whole == size:
            end = _write(buffer, end, whole, 1)
        else:
            c = (bits[i] & (hidden - np.uint64(1))) | hidden
            q = int((bits[i] >> np.uint64(mantissa)) & np.uint64(2 * bias + 1)) - bias - mantissa
            digits, decimals = shortest(c, q, hidden)
            end = _decimal(buffer, end, digits, decimals)
        for k in range(end, before):
            buffer[k] = 0
        before = end
        out[i] = _ended(state, h, m, end)


@jit
def whole_digests(sizes, negative, state, out):
    """Digests of whole numbers."""
    buffer, h = np.zeros(LONGEST, np.uint8), np.zeros(8, np.uint64)
    m = buffer.view(np.uint64)
    before = 0
    for i in range(len(sizes)):
        end = 0
        if negative[i]:
            buffer[0] = 45
            end = 1
        end = _write(buffer, end, sizes[i], 1)
        for k in range(end, before):
            buffer[k] = 0
        before = end
        out[i] = _ended(state, h, m, end)
