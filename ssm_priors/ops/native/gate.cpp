// out = a sigmoid(b), [a, b] = y W^T + bias, and its gradients: a linear layer and its gate in one walk over the rows.
//
// y: (rows, K); W: (2H, K); bias: (2H); out: (rows, H). Products are made in tiles whose sums stay in registers. Forward, half
// of a tile is of a, half of b for the same channels, so that the gate closes over it before it is stored; a and sigmoid(b)
// are kept. Backward, the gradient of [a, b] exists for some rows at a time, from which both products read it. What rows add
// to dW and dbias is summed in groups that depend on the shape alone, then pairwise: the same bits from any number of threads.

#include <type_traits>

#include "lanes.hpp"

namespace {

constexpr int SUMS = W == 16 ? 24 : 12;         // vectors of sums, of 32 or of 16 registers
constexpr int64_t TINY = 1 << 20;               // products below which threads cost more than they bring
constexpr int64_t FORWARD = 24, BACKWARD = 96;  // rows that are walked together while W passes by

struct Shape {
    int64_t rows, K, H;

    INLINE int64_t panels() const { return ceil_div(K, 2 * W); }  // of the columns of y
    INLINE int64_t width() const { return panels() * 2 * W; }     // of a row of dW here
    // Rows of scratch do not begin at the same place of the cache.
    INLINE int64_t y_row() const { return width() + LINE; }
    INLINE int64_t g_row() const { return ceil_div(2 * H, LINE) * LINE + LINE; }
    INLINE int64_t groups() const { return clamp(rows / (8 * (K > H ? K : H)), 1, 32); }
};

// f(M, i) for tiles of M rows and N vectors, i the first row: as many full ones as there are, then of one row.
template <int N, class F> INLINE void in_tiles(int64_t count, F f) {
    constexpr int M = SUMS / N;
    int64_t i = 0;
    for (; i + M <= count; i += M) f(std::integral_constant<int, M>{}, i);
    for (; M > 4 && i + 4 <= count; i += 4) f(std::integral_constant<int, 4>{}, i);
    for (; i < count; i++) f(std::integral_constant<int, 1>{}, i);
}

template <int M, int N> struct Tile {
    V at[M][N];
};

// sum over k of left(i, k) right(k) for M rows i; left(i, k) stands at left[i row + k step], where one of the two is 1;
// right(k) is N vectors at right[k next].
template <int M, int N, bool ROWS_APART>
__attribute__((noinline)) Tile<M, N> product(const float* left, int64_t apart, const float* right, int64_t next, int64_t terms) {
    const int64_t row = ROWS_APART ? apart : 1, step = ROWS_APART ? 1 : apart;
    Tile<M, N> sum{};
    for (int64_t k = 0; k < terms; k++, left += step, right += next) {
        V x[N];
#pragma GCC unroll 4
        for (int j = 0; j < N; j++) memcpy(&x[j], right + j * W, sizeof(V));
#pragma GCC unroll 16
        for (int i = 0; i < M; i++)
#pragma GCC unroll 4
            for (int j = 0; j < N; j++) sum.at[i][j] += x[j] * left[i * row];
    }
    return sum;
}

INLINE V sigmoid(V x) {
    const V e = exp_negative(x < 0.0f ? x : -x);
    const V upper = 1.0f / (e + 1.0f);
    return x < 0.0f ? e * upper : upper;
}

// panel[channels / LINE][k][a, b][channels % LINE]: W^T for `forward_rows`.
void pack_gate(float* panel, const float* weight, const Shape& s) {
    for (int64_t h = 0; h < lines_of(s.H) * LINE; h++) {
        float* at = panel + h / LINE * s.K * 2 * LINE + h % LINE;
        for (int64_t k = 0; k < s.K; k++, at += 2 * LINE) {
            at[0] = h < s.H ? weight[h * s.K + k] : 0;
            at[LINE] = h < s.H ? weight[(s.H + h) * s.K + k] : 0;
        }
    }
}

// panel[columns / 2W][m][columns % 2W]: W for the gradient of y.
void pack_weight(float* panel, const float* weight, const Shape& s) {
    for (int64_t p = 0; p < s.panels(); p++)
        for (int64_t m = 0; m < 2 * s.H; m++)
            for (int64_t i = 0; i < 2 * W; i++) {
                const int64_t k = p * 2 * W + i;
                *panel++ = k < s.K ? weight[m * s.K + k] : 0;
            }
}

// All pointers are at the first of `count` rows.
void forward_rows(const Shape& s, int64_t count, const float* y, const float* panel, const float* bias, float* out, float* z) {
    for (int64_t line = 0; line < lines_of(s.H); line++)
        in_tiles<2 * SIDE>(count, [&](auto m, int64_t first) {
            constexpr int M = decltype(m)::value;
            const auto sum = product<M, 2 * SIDE, true>(y + first * s.K, s.K, panel + line * s.K * 2 * LINE, 2 * LINE, s.K);
            for (int j = 0; j < SIDE; j++) {
                const Channels ch = channels_of(line * SIDE + j, s.H);
                const V bias_a = ch.load(bias), bias_b = ch.load(bias + s.H);
                for (int i = 0; i < M; i++) {
                    const int64_t r = first + i;
                    const V a = sum.at[i][j] + bias_a, open = sigmoid(sum.at[i][SIDE + j] + bias_b);
                    if (z) ch.store(z + r * 2 * s.H, a), ch.store(z + r * 2 * s.H + s.H, open);
                    ch.store(out + r * s.H, a * open);
                }
            }
        });
}

// g: the gradient of [a, b], (count, g_row).
void through_gate(const Shape& s, int64_t count, const float* grad, const float* z, float* g) {
    for (int64_t r = 0; r < count; r++)
        for (int64_t block = 0; block < blocks_of(s.H); block++) {
            const Channels ch = channels_of(block, s.H);
            const float* row = z + r * 2 * s.H;
            const V open = ch.load(row + s.H), into_a = ch.load(grad + r * s.H) * open;
            ch.store(g + r * s.g_row(), into_a);
            ch.store(g + r * s.g_row() + s.H, into_a * ch.load(row) * (1.0f - open));
        }
}

// Adds what `count` rows give to dbias (2H).
void sum_rows(const Shape& s, int64_t count, const float* g, float* dbias) {
    for (int64_t block = 0; block < blocks_of(2 * s.H); block++) {
        const Channels ch = channels_of(block, 2 * s.H);
        V sum{};
        for (int64_t r = 0; r < count; r++) sum += ch.load(g + r * s.g_row());
        ch.store(dbias, ch.load(dbias) + sum);
    }
}

void into_y(const Shape& s, int64_t count, const float* g, const float* panel, float* dy) {
    for (int64_t p = 0; p < s.panels(); p++) {
        const Channels one = channels_of(2 * p, s.K), two = channels_of(2 * p + 1, s.K);
        in_tiles<2>(count, [&](auto m, int64_t first) {
            constexpr int M = decltype(m)::value;
            const auto sum = product<M, 2, true>(g + first * s.g_row(), s.g_row(), panel + p * 2 * s.H * 2 * W, 2 * W, 2 * s.H);
            for (int i = 0; i < M; i++) {
                one.store(dy + (first + i) * s.K, sum.at[i][0]);
                two.store(dy + (first + i) * s.K, sum.at[i][1]);
            }
        });
    }
}

// Adds what `count` rows give to dW, (2H, width). y: (count, y_row).
void into_weight(const Shape& s, int64_t count, const float* g, const float* y, float* dweight) {
    for (int64_t p = 0; p < s.panels(); p++)
        in_tiles<2>(2 * s.H, [&](auto m, int64_t first) {
            constexpr int M = decltype(m)::value;
            const auto sum = product<M, 2, false>(g + first, s.g_row(), y + p * 2 * W, s.y_row(), count);
            for (int i = 0; i < M; i++) {
                float* at = dweight + (first + i) * s.width() + p * 2 * W;
                for (int j = 0; j < 2; j++) {
                    V total;
                    memcpy(&total, at + j * W, sizeof(V));
                    total += sum.at[i][j];
                    memcpy(at + j * W, &total, sizeof(V));
                }
            }
        });
}

struct Work {
    float *g, *y;  // (BACKWARD, g_row) and (BACKWARD, y_row)
};

void backward_rows(const Shape& s, int64_t count, const float* grad, const float* y, const float* z, const float* panel, float* dy,
                   float* dweight, float* dbias, const Work& work) {
    for (int64_t r = 0; r < count; r++) {
        memcpy(work.y + r * s.y_row(), y + r * s.K, sizeof(float) * size_t(s.K));
        memset(work.y + r * s.y_row() + s.K, 0, sizeof(float) * size_t(s.width() - s.K));
    }
    through_gate(s, count, grad, z, work.g);
    sum_rows(s, count, work.g, dbias);
    into_y(s, count, work.g, panel, dy);
    into_weight(s, count, work.g, work.y, dweight);
}

}  // namespace

extern "C" {

// -> out, and z = [a, sigmoid(b)], (rows, 2H), unless z is null. Returns a Status.
int ssmp_gate(const float* y, const float* weight, const float* bias, float* out, float* z, int64_t rows, int64_t K, int64_t H,
              int threads) {
    const Shape s{rows, K, H};
    Scratch<float> panel(lines_of(s.H) * K * 2 * LINE);
    if (!panel.at) return NO_MEMORY;
    pack_gate(panel.at, weight, s);
    if (rows * K * H < TINY) threads = 1;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < rows; first += FORWARD) {
        const int64_t count = clamp(rows - first, 0, FORWARD);
        forward_rows(s, count, y + first * K, panel.at, bias, out + first * H, z ? z + first * 2 * H : nullptr);
    }
    return DONE;
}

// grad: of out; z: what was kept -> dy (rows, K), dweight (2H, K), dbias (2H). Returns a Status.
int ssmp_gate_backward(const float* grad, const float* y, const float* z, const float* weight, float* dy, float* dweight,
                       float* dbias, int64_t rows, int64_t K, int64_t H, int threads) {
    const Shape s{rows, K, H};
    const int64_t groups = s.groups(), size = 2 * H * (s.width() + 1);
    Scratch<float> panel(s.panels() * 2 * H * 2 * W), sums(groups * size);
    if (!panel.at || !sums.at) return NO_MEMORY;
    pack_weight(panel.at, weight, s);
    memset(sums.at, 0, sizeof(float) * size_t(groups * size));
    if (rows * K * H < TINY) threads = 1;
    int status = DONE;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Scratch<float> g(BACKWARD * s.g_row()), padded(BACKWARD * s.y_row());
        const bool ready = g.at && padded.at;
        if (!ready) {
#pragma omp atomic write
            status = NO_MEMORY;
        }
#pragma omp for schedule(dynamic)
        for (int64_t group = 0; group < groups; group++) {
            const int64_t end = rows * (group + 1) / groups;
            float *into_w = sums.at + group * size, *into_bias = into_w + 2 * H * s.width();
            for (int64_t first = rows * group / groups; ready && first < end; first += BACKWARD) {
                const int64_t count = clamp(end - first, 0, BACKWARD);
                backward_rows(s, count, grad + first * H, y + first * K, z + first * 2 * H, panel.at, dy + first * K, into_w,
                              into_bias, {g.at, padded.at});
            }
        }
    }
    if (status != DONE) return status;
    sum_pairwise(sums.at, groups, size);
    for (int64_t m = 0; m < 2 * H; m++) memcpy(dweight + m * K, sums.at + m * s.width(), sizeof(float) * size_t(K));
    memcpy(dbias, sums.at + 2 * H * s.width(), sizeof(float) * size_t(2 * H));
    return DONE;
}

}  // extern "C"
