"""What runs on the GPU: the steps of `ops.chunked`, and the kernel table of `ops.vandermonde`.

Products of small matrices go through `tl.dot` (tensor cores), one channel a program, so that sequences are read as they
lie, channels last; programs of neighbouring channels run side by side and share what they fetch. A row is one chunk of
one sequence of the batch, numbered b * chunks + c. States and phases are float64; sums have one order, so that the same
input gives the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

TURN = tl.constexpr(6.283185307179586)


@triton.jit
def _place(row, column, channel, chunks, length, channels, width, IS_SEQUENCE: tl.constexpr):
    """Offsets of rows and columns, and which are there: of a sequence (B, L, H), or of states (B, chunks, H, P).

    `width` is the number of columns: the steps T of a chunk, or P.
    """
    if IS_SEQUENCE:
        position = row % chunks * width + column
        offset = ((row // chunks).to(tl.int64) * length + position) * channels + channel
        there = (position < length) & (column < width)
    else:
        offset = (row.to(tl.int64) * channels + channel) * width + column
        there = column < width
    return offset, there


@triton.jit
def _tile(source, row, column, rows, channel, chunks, length, channels, width, IS_SEQUENCE: tl.constexpr):
    """What stands there, as float32, and zeros outside."""
    offset, there = _place(row, column, channel, chunks, length, channels, width, IS_SEQUENCE)
    return tl.load(source + offset, mask=there & (row < rows), other=0.0).to(tl.float32)


@triton.jit
def project(
    u,
    into,
    states,
    rows,
    chunks,
    length,
    channels,
    width,
    T: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """u V: a tile of ROWS chunks and WIDTH of the P state numbers. Grid (channels, rows, P)."""
    channel = tl.program_id(0)
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS))[:, None]
    column = (tl.program_id(2) * WIDTH + tl.arange(0, WIDTH))[None, :]
    step = tl.arange(0, T)
    values = _tile(u, row, step[None, :], rows, channel, chunks, length, channels, T, True)
    cell = (channel.to(tl.int64) * T + step[:, None]) * width + column
    table = tl.load(into + cell, mask=column < width, other=0.0)
    added = tl.dot(values, table, input_precision=PRECISION)
    offset, there = _place(row, column, channel, chunks, length, channels, width, False)
    tl.store(states + offset, added, mask=there & (row < rows))


@triton.jit
def emit(
    u,
    line,
    states,
    out,
    y,
    rows,
    chunks,
    length,
    channels,
    width,
    T: tl.constexpr,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """u M + x W: STEPS of the outputs of ROWS chunks; M is read off its line. Grid (channels, rows, steps)."""
    channel = tl.program_id(0)
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS))[:, None]
    step = (tl.program_id(2) * STEPS + tl.arange(0, STEPS))[None, :]
    earlier = tl.arange(0, T)
    values = _tile(u, row, earlier[None, :], rows, channel, chunks, length, channels, T, True)
    inside = tl.load(line + channel * (2 * T - 1) + T - 1 + step - earlier[:, None])
    total = tl.dot(values, inside, input_precision=PRECISION)
    for first in range(0, width, WIDTH):
        column = first + tl.arange(0, WIDTH)
        state = _tile(states, row, column[None, :], rows, channel, chunks, length, channels, width, False)
        cell = (channel.to(tl.int64) * width + column[:, None]) * T + step
        table = tl.load(out + cell, mask=column[:, None] < width, other=0.0)
        total = tl.dot(state, table, total, input_precision=PRECISION)
    offset, there = _place(row, step, channel, chunks, length, channels, T, True)
    tl.store(y + offset, total, mask=there & (row < rows))


@triton.jit
def correlate(
    left,
    right,
    sums,
    rows,
    share,
    chunks,
    length,
    channels,
    left_width,
    right_width,
    LEFT_IS_SEQUENCE: tl.constexpr,
    RIGHT_IS_SEQUENCE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """sum over `share` rows of left[row, i] right[row, j]: BLOCK x BLOCK of them. Grid (channels, parts, blocks)."""
    channel, part = tl.program_id(0), tl.program_id(1)
    across = tl.cdiv(right_width, BLOCK)
    i = (tl.program_id(2) // across * BLOCK + tl.arange(0, BLOCK))[:, None]
    j = (tl.program_id(2) % across * BLOCK + tl.arange(0, BLOCK))[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for first in range(part * share, min(rows, (part + 1) * share), ROWS):
        row = first + tl.arange(0, ROWS)
        one = _tile(left, row[None, :], i, rows, channel, chunks, length, channels, left_width, LEFT_IS_SEQUENCE)
        other = _tile(right, row[:, None], j, rows, channel, chunks, length, channels, right_width, RIGHT_IS_SEQUENCE)
        total = tl.dot(one, other, total, input_precision=PRECISION)
    cell = ((part.to(tl.int64) * channels + channel) * left_width + i) * right_width + j
    tl.store(sums + cell, total, mask=(i < left_width) & (j < right_width))


@triton.jit
def _compose(a_real, a_imag, x_real, x_imag, b_real, b_imag, y_real, y_imag):
    """First s -> a s + x, then s -> b s + y."""
    return (
        b_real * a_real - b_imag * a_imag,
        b_real * a_imag + b_imag * a_real,
        b_real * x_real - b_imag * x_imag + y_real,
        b_real * x_imag + b_imag * x_real + y_imag,
    )


@triton.jit
def carry(
    local,
    hop,
    entering,
    states,
    chunks,
    lanes,
    pairs,
    modes,
    ADJOINT: tl.constexpr,
    TILE: tl.constexpr,
    LANES: tl.constexpr,
):
    """States before each chunk, in float64: a scan within tiles of TILE chunks, and from tile to tile.

    A lane is a mode of a direction of a channel; it has `pairs` of them, of which the last `pairs - modes` run from the
    end; with ADJOINT, the others do. Grid (batch, lanes).
    """
    batch = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * LANES + tl.arange(0, LANES)
    here = lane < lanes
    is_reversed = (lane % pairs >= modes) != ADJOINT
    hop_real = tl.load(hop + 2 * lane, mask=here, other=0.0)
    hop_imag = tl.load(hop + 2 * lane + 1, mask=here, other=0.0)
    real = tl.load(entering + (batch * lanes + lane) * 2, mask=here, other=0.0).to(tl.float64)
    imag = tl.load(entering + (batch * lanes + lane) * 2 + 1, mask=here, other=0.0).to(tl.float64)
    origin = ((batch * chunks + tl.where(is_reversed, chunks - 1, 0)) * lanes + lane) * 2
    tl.store(states + origin, real.to(tl.float32), mask=here)
    tl.store(states + origin + 1, imag.to(tl.float32), mask=here)
    onward = tl.where(is_reversed, -2, 2).to(tl.int64) * lanes  # from a chunk to the next in a lane's own order
    tile = tl.arange(0, TILE)[:, None]
    for first in range(0, chunks, TILE):
        at = origin[None, :] + (first + tile) * onward[None, :]
        there = here[None, :] & (first + tile < chunks)
        added_real = tl.load(local + at, mask=there, other=0.0).to(tl.float64)
        added_imag = tl.load(local + at + 1, mask=there, other=0.0).to(tl.float64)
        step_real = tl.broadcast_to(hop_real[None, :], (TILE, LANES))
        step_imag = tl.broadcast_to(hop_imag[None, :], (TILE, LANES))
        power_real, power_imag, sum_real, sum_imag = tl.associative_scan(
            (step_real, step_imag, added_real, added_imag), 0, _compose
        )
        behind_real = power_real * real[None, :] - power_imag * imag[None, :] + sum_real
        behind_imag = power_real * imag[None, :] + power_imag * real[None, :] + sum_imag
        there = here[None, :] & (first + tile + 1 < chunks)
        tl.store(states + at + onward[None, :], behind_real.to(tl.float32), mask=there)
        tl.store(states + at + onward[None, :] + 1, behind_imag.to(tl.float32), mask=there)
        real = tl.sum(tl.where(tile == TILE - 1, behind_real, 0.0), axis=0)
        imag = tl.sum(tl.where(tile == TILE - 1, behind_imag, 0.0), axis=0)


@triton.jit
def _powers(decay, angle, lag):
    """z^lag in float32, the phase reduced in float64; decay and angle: float64, -decay >= 0."""
    turns = angle * lag / TURN
    phase = ((turns - tl.floor(turns + 0.5)) * TURN).to(tl.float32)
    size = tl.exp((decay * lag).to(tl.float32))
    return size * tl.cos(phase), size * tl.sin(phase)


@triton.jit
def vandermonde(
    c_real,
    c_imag,
    log_real,
    log_imag,
    kernel,
    channels,
    modes,
    length,
    R: tl.constexpr,
    ROWS: tl.constexpr,
    MODES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """2 Re sum_n C_n z_n^(qR + r): ROWS q's and all r's of a tile. Grid (channels, q, directions)."""
    channel = tl.program_id(0)
    index = tl.program_id(2) * channels + channel  # of the direction and channel
    q = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    r = tl.arange(0, R)
    total = tl.zeros((ROWS, R), tl.float32)
    for first in range(0, modes, MODES):
        mode = first + tl.arange(0, MODES)
        there = mode < modes
        decay = tl.load(log_real + channel * modes + mode, mask=there, other=0.0)
        angle = tl.load(log_imag + channel * modes + mode, mask=there, other=0.0)
        c = tl.load(c_real + index * modes + mode, mask=there, other=0.0).to(tl.float32)[None, :]
        d = tl.load(c_imag + index * modes + mode, mask=there, other=0.0).to(tl.float32)[None, :]
        real, imag = _powers(decay[None, :], angle[None, :], q[:, None] * R)  # (ROWS, MODES)
        fine_real, fine_imag = _powers(decay[:, None], angle[:, None], r[None, :])  # (MODES, R)
        total = tl.dot(2 * (c * real - d * imag), fine_real, total, input_precision=PRECISION)
        total = tl.dot(-2 * (d * real + c * imag), fine_imag, total, input_precision=PRECISION)
    lag = q[:, None] * R + r[None, :]
    tl.store(kernel + index.to(tl.int64) * length + lag, total, mask=lag < length)


@triton.jit
def vandermonde_backward(
    grad,
    log_real,
    log_imag,
    sums,
    channels,
    modes,
    length,
    R: tl.constexpr,
    ROWS: tl.constexpr,
    MODES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """sum_l g_l z^l and sum_l l g_l z^l, float64: sums (direction, H, N/2, 4). Grid (channels, modes, directions)."""
    channel = tl.program_id(0)
    index = tl.program_id(2) * channels + channel
    mode = tl.program_id(1) * MODES + tl.arange(0, MODES)
    there = mode < modes
    decay = tl.load(log_real + channel * modes + mode, mask=there, other=0.0)[None, :]
    angle = tl.load(log_imag + channel * modes + mode, mask=there, other=0.0)[None, :]
    r = tl.arange(0, R)
    fine_real, fine_imag = _powers(decay, angle, r[:, None])  # (R, MODES)
    zero_real = tl.zeros((MODES,), tl.float64)
    zero_imag = tl.zeros((MODES,), tl.float64)
    one_real = tl.zeros((MODES,), tl.float64)
    one_imag = tl.zeros((MODES,), tl.float64)
    for first in range(0, tl.cdiv(length, R), ROWS):
        q = (first + tl.arange(0, ROWS))[:, None]
        lag = q * R + r[None, :]
        values = tl.load(grad + index.to(tl.int64) * length + lag, mask=lag < length, other=0.0)  # (ROWS, R)
        a = tl.dot(values, fine_real, input_precision=PRECISION).to(tl.float64)
        b = tl.dot(values, fine_imag, input_precision=PRECISION).to(tl.float64)
        ahead = values * r[None, :].to(tl.float32)
        c = tl.dot(ahead, fine_real, input_precision=PRECISION).to(tl.float64) + q * R * a
        d = tl.dot(ahead, fine_imag, input_precision=PRECISION).to(tl.float64) + q * R * b
        real, imag = _powers(decay, angle, q * R)  # (ROWS, MODES)
        real, imag = real.to(tl.float64), imag.to(tl.float64)
        zero_real += tl.sum(real * a - imag * b, axis=0)
        zero_imag += tl.sum(real * b + imag * a, axis=0)
        one_real += tl.sum(real * c - imag * d, axis=0)
        one_imag += tl.sum(real * d + imag * c, axis=0)
    cell = sums + (index.to(tl.int64) * modes + mode) * 4
    tl.store(cell, zero_real, mask=there)
    tl.store(cell + 1, zero_imag, mask=there)
    tl.store(cell + 2, one_real, mask=there)
    tl.store(cell + 3, one_imag, mask=there)
