// K[d, l, h] = 2 Re sum_n C[d, h, n] z[h, n]^l and its gradients, W channels at once, without a tensor (H, N, L).
//
// With l = q R + r, z^l = z^{qR} z^r: two tables, made in double by repeated products from z and z^R (whose phase is
// reduced in double), then a product of small real matrices in float. C and log z are double, (directions, H, N) and (H, N).

#include "lanes.hpp"

namespace {

constexpr int TQ = 2, TR = 4;  // tile of the product: its sums stay in registers

struct Shape {
    int64_t directions, H, N, L, R, Q;

    INLINE int64_t tiles_q() const { return (Q + TQ - 1) / TQ; }
    INLINE int64_t tiles_r() const { return (R + TR - 1) / TR; }
};

struct Complex {
    D re, im;
};

INLINE Complex times(Complex a, Complex b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }

// One mode n of all channels, 0 in those that do not exist.
INLINE D gather(const double* table, const Channels& ch, int64_t N, int64_t n) {
    D v{};
    for (int i = 0; i < ch.count(); i++) v[i] = table[(ch.first + i) * N + n];
    return v;
}

INLINE void scatter(double* table, const Channels& ch, int64_t N, int64_t n, D v) {
    for (int i = 0; i < ch.count(); i++) table[(ch.first + i) * N + n] = v[i];
}

// exp(steps log z).
INLINE Complex power(D real, D imag, double steps, int count) {
    Complex z{};
    for (int i = 0; i < count; i++) {
        const double size = exp(real[i] * steps), phase = remainder(imag[i] * steps, 2 * M_PI);
        z.re[i] = size * cos(phase);
        z.im[i] = size * sin(phase);
    }
    return z;
}

// To float; what would be subnormal there becomes 0, because arithmetic on such numbers is slow.
INLINE V narrow(D x) {
    V v = __builtin_convertvector(x, V);
    return (v < 0.0f ? -v : v) < 1.17549435e-38f ? V{} : v;
}

// table[r / TR][n][part][r % TR]: z^r, ready for the product.
void fine_table(V* table, const Shape& s, int64_t n, Complex z) {
    Complex x{D{} + 1.0, D{}};
    for (int64_t r = 0; r < s.tiles_r() * TR; r++, x = times(x, z)) {
        V* at = table + ((r / TR * s.N + n) * 2) * TR + r % TR;
        at[0] = r < s.R ? narrow(x.re) : V{};
        at[TR] = r < s.R ? narrow(x.im) : V{};
    }
}

// table[q / TQ][n][part][q % TQ]: 2 C z^{qR} as (Re, -Im), so that Re(C z^l) is a sum of products.
void coarse_table(V* table, const Shape& s, int64_t n, Complex c, Complex step) {
    Complex x{c.re * 2.0, c.im * 2.0};
    for (int64_t q = 0; q < s.tiles_q() * TQ; q++, x = times(x, step)) {
        V* at = table + ((q / TQ * s.N + n) * 2) * TQ + q % TQ;
        at[0] = narrow(x.re);
        at[TQ] = narrow(-x.im);
    }
}

INLINE void tile(const V* __restrict coarse, const V* __restrict fine, int64_t terms, V (&sum)[TQ][TR]) {
    for (auto& row : sum)
        for (V& x : row) x = V{};
    for (int64_t i = 0; i < terms; i++, coarse += TQ, fine += TR)
        for (int a = 0; a < TQ; a++)
            for (int b = 0; b < TR; b++) sum[a][b] += coarse[a] * fine[b];
}

void forward_block(const double* const* in, float* kernel, const Shape& s, const Channels& ch, V* fine, V* coarse) {
    for (int64_t n = 0; n < s.N; n++)
        fine_table(fine, s, n, power(gather(in[2], ch, s.N, n), gather(in[3], ch, s.N, n), 1, ch.count()));
    for (int64_t d = 0; d < s.directions; d++) {
        const int64_t skip = d * s.H * s.N;
        for (int64_t n = 0; n < s.N; n++) {
            const Complex step = power(gather(in[2], ch, s.N, n), gather(in[3], ch, s.N, n), double(s.R), ch.count());
            coarse_table(coarse, s, n, {gather(in[0] + skip, ch, s.N, n), gather(in[1] + skip, ch, s.N, n)}, step);
        }
        for (int64_t q = 0; q < s.tiles_q(); q++)
            for (int64_t r = 0; r < s.tiles_r(); r++) {
                V sum[TQ][TR];
                tile(coarse + q * s.N * 2 * TQ, fine + r * s.N * 2 * TR, 2 * s.N, sum);
                for (int a = 0; a < TQ; a++)
                    for (int b = 0; b < TR; b++) {
                        const int64_t l = (q * TQ + a) * s.R + r * TR + b;
                        if (r * TR + b < s.R && l < s.L) ch.store(kernel + (d * s.L + l) * s.H, sum[a][b]);
                    }
            }
    }
}

struct Sums {
    V zero_re{}, zero_im{}, one_re{}, one_im{};
};

// sum over r of g[r] z^r, and of r g[r] z^r.
INLINE void moments(const V* __restrict g, const V* __restrict re, const V* __restrict im, int64_t R, Sums& s) {
    for (int64_t r = 0; r < R; r++) {
        const V x = g[r], weighted = x * float(r);
        s.zero_re += x * re[r];
        s.zero_im += x * im[r];
        s.one_re += weighted * re[r];
        s.one_im += weighted * im[r];
    }
}

// S = sum_l g[l] z^l and T = sum_l l g[l] z^l give dC = 2 conj(S) and d(log z) = 2 conj(C T), summed over directions.
void backward_block(const float* grad, const double* const* in, double* const* out, const Shape& s, const Channels& ch, V* g, V* re,
                    V* im) {
    for (int64_t d = 0; d < s.directions; d++)
        for (int64_t l = 0; l < s.Q * s.R; l++) g[d * s.Q * s.R + l] = l < s.L ? ch.load(grad + (d * s.L + l) * s.H) : V{};
    for (int64_t n = 0; n < s.N; n++) {
        const D real = gather(in[2], ch, s.N, n), imag = gather(in[3], ch, s.N, n);
        const Complex z = power(real, imag, 1, ch.count()), step = power(real, imag, double(s.R), ch.count());
        Complex x{D{} + 1.0, D{}};
        for (int64_t r = 0; r < s.R; r++, x = times(x, z)) re[r] = narrow(x.re), im[r] = narrow(x.im);
        Complex log_grad{};
        for (int64_t d = 0; d < s.directions; d++) {
            Complex S{}, T{};
            x = {D{} + 2.0, D{}};
            for (int64_t q = 0; q < s.Q; q++, x = times(x, step)) {
                Sums sums;
                moments(g + (d * s.Q + q) * s.R, re, im, s.R, sums);
                const Complex zero{__builtin_convertvector(sums.zero_re, D), __builtin_convertvector(sums.zero_im, D)};
                const Complex one{__builtin_convertvector(sums.one_re, D), __builtin_convertvector(sums.one_im, D)};
                const double before = double(q * s.R);
                const Complex part = times(x, zero), later = times(x, {one.re + before * zero.re, one.im + before * zero.im});
                S.re += part.re, S.im += part.im, T.re += later.re, T.im += later.im;
            }
            const int64_t skip = d * s.H * s.N;
            const Complex CT = times({gather(in[0] + skip, ch, s.N, n), gather(in[1] + skip, ch, s.N, n)}, T);
            scatter(out[0] + skip, ch, s.N, n, S.re);
            scatter(out[1] + skip, ch, s.N, n, -S.im);
            log_grad.re += CT.re, log_grad.im -= CT.im;
        }
        scatter(out[2], ch, s.N, n, log_grad.re);
        scatter(out[3], ch, s.N, n, log_grad.im);
    }
}

INLINE Shape shape_of(int64_t directions, int64_t H, int64_t N, int64_t L) {
    int64_t R = 1;
    while (R * R < L) R *= 2;
    return {directions, H, N, L, R, (L + R - 1) / R};
}

}  // namespace

extern "C" {

// C: two tables (directions, H, N), log z: two tables (H, N) -> kernel (directions, L, H). Returns a Status.
int ssmp_vandermonde(const double* c_re, const double* c_im, const double* log_re, const double* log_im, float* kernel,
                     int64_t directions, int64_t H, int64_t N, int64_t L, int threads) {
    const Shape s = shape_of(directions, H, N, L);
    const double* in[] = {c_re, c_im, log_re, log_im};
    const int64_t blocks = blocks_of(H);
    if (blocks == 1 || H * N * L < 1 << 20) threads = 1;
    int status = DONE;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Scratch<V> fine(s.tiles_r() * TR * N * 2), coarse(s.tiles_q() * TQ * N * 2);
        const bool ready = fine.at && coarse.at;
        if (!ready) {
#pragma omp atomic write
            status = NO_MEMORY;
        }
#pragma omp for schedule(dynamic)
        for (int64_t block = 0; block < blocks; block++)
            if (ready) forward_block(in, kernel, s, channels_of(block, H), fine.at, coarse.at);
    }
    return status;
}

// grad: (directions, L, H) -> the gradients of C: two tables, and of log z: two tables, all double. Returns a Status.
int ssmp_vandermonde_backward(const float* grad, const double* c_re, const double* c_im, const double* log_re, const double* log_im,
                              double* dc_re, double* dc_im, double* dlog_re, double* dlog_im, int64_t directions, int64_t H,
                              int64_t N, int64_t L, int threads) {
    const Shape s = shape_of(directions, H, N, L);
    const double* in[] = {c_re, c_im, log_re, log_im};
    double* out[] = {dc_re, dc_im, dlog_re, dlog_im};
    const int64_t blocks = blocks_of(H);
    if (blocks == 1 || H * N * L < 1 << 20) threads = 1;
    int status = DONE;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Scratch<V> g(directions * s.Q * s.R), re(s.R), im(s.R);
        const bool ready = g.at && re.at && im.at;
        if (!ready) {
#pragma omp atomic write
            status = NO_MEMORY;
        }
#pragma omp for schedule(dynamic)
        for (int64_t block = 0; block < blocks; block++)
            if (ready) backward_block(grad, in, out, s, channels_of(block, H), g.at, re.at, im.at);
    }
    return status;
}

}  // extern "C"
