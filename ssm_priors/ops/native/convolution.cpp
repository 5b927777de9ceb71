// y = act(u * K + D u) and its gradients, channels last, one- or two-sided; act is GELU or nothing.
//
// u, y: (B, L, H); K: (directions, L, H); D: (H). A task is a line of channels with a group of rows of the batch, taken two
// at a time. Forward, rows do not meet, so any split gives the same bits; backward, they meet in dK and dD, whose groups
// depend on the shape alone and are summed pairwise: the same bits from any number of threads.

#include "fft.hpp"

namespace {

constexpr int64_t TINY = 32768;    // numbers of u below which threads cost more than they bring
constexpr int64_t AHEAD = 16;      // places of a sequence before which its memory is asked for
constexpr int64_t WANTED = 32;     // tasks that backward makes where the batch allows
constexpr int64_t FEWEST = 4, MOST = 16;  // pairs of rows in a group of backward: K's spectrum is made anew for each

struct Shape {
    int64_t B, L, H;
    int directions;

    INLINE int64_t pairs() const { return (B + 1) / 2; }
    INLINE int64_t row(int64_t b, int64_t t) const { return (b * L + t) * H; }
};

INLINE int64_t groups_forward(const Shape& s, int threads) {
    return clamp(ceil_div(2 * threads, lines_of(s.H)), 1, s.pairs());
}

INLINE int64_t groups_backward(const Shape& s) {
    int64_t wanted = clamp(ceil_div(WANTED, lines_of(s.H)), 1, ceil_div(s.pairs(), FEWEST));
    int64_t needed = ceil_div(s.pairs(), MOST);
    return wanted > needed ? wanted : needed;
}

// The spectrum of the kernel, with D at its lag 0, divided by the number of points. Lag -s - 1 of the second direction
// stands at points - s - 1.
void kernel_spectrum(C* x, const float* kernel, const float* skip, const Shape& s, const Plan& plan, const Channels& ch) {
    const float scale = 1.0f / float(plan.points);
    const int L = int(s.L), M = plan.points;
    auto past = [&](int t) { return C{(ch.load(kernel + t * s.H) + (t ? V{} : ch.load(skip))) * scale, V{}}; };
    Forward op{x};
    if (s.directions == 1) {
        first_pass<1>(x, 0, plan, L, [&](int t) { return Several<1>{{past(t)}}; });
    } else {
        const float* future = kernel + s.L * s.H;
        for (int t = 0; t < M; t++) x[t] = C{};
        for (int t = 0; t < L; t++) x[t] = past(t);
        for (int t = 0; t + 1 < L; t++) x[M - 1 - t].re = ch.load(future + t * s.H) * scale;
        pass_down(x, plan.level[0]);
    }
    inside(op, plan);
}

// The adjoint: what the circle holds, back at the kernel's lags.
void kernel_from(C* x, float* kernel, const Shape& s, const Plan& plan, const Channels& ch) {
    const int L = int(s.L), M = plan.points;
    const float scale = 1.0f / float(M);
    Backward op{x};
    inside(op, plan);
    if (s.directions == 1)
        return last_pass<1>(x, 0, plan, L, [&](int t, Several<1> y) { ch.store(kernel + t * s.H, y.at[0].re * scale); });
    float* future = kernel + s.L * s.H;
    pass_up(x, plan.level[0]);
    for (int t = 0; t < L; t++) ch.store(kernel + t * s.H, x[t].re * scale);
    for (int t = 0; t + 1 < L; t++) ch.store(future + t * s.H, x[M - 1 - t].re * scale);
    ch.store(future + (s.L - 1) * s.H, V{});
}

// x <- x * K on the circle.
struct Multiply {
    C* x;
    const C* k;
    INLINE void down(int at, const Level& level) { pass_down(x + at, level); }
    INLINE void up(int at, const Level& level) { pass_up(x + at, level); }
    INLINE void point(int at) { x[at] = x[at] * k[at]; }
    template <int R> INLINE void leaf(int at) {
        C y[R];
        for (int j = 0; j < R; j++) y[j] = x[at + j];
        butterfly<R, false>(y);
        for (int j = 0; j < R; j++) y[j] = y[j] * k[at + j];
        butterfly<R, true>(y);
        for (int j = 0; j < R; j++) x[at + j] = y[j];
    }
};

// sum <- sum + conj(U) G in the spectrum, g <- g correlated with K. U and G hold two rows each, and rows must not meet:
// conj(U) G mixes them only in its imaginary part on the circle, which is dropped.
struct Correlate {
    C *u, *g, *sum;
    const C* k;
    INLINE void down(int at, const Level& level) {
        pass_down(u + at, level);
        pass_down(g + at, level);
    }
    INLINE void up(int at, const Level& level) { pass_up(g + at, level); }
    INLINE void point(int at) {
        sum[at] = sum[at] + conj_times(u[at], g[at]);
        g[at] = conj_times(k[at], g[at]);
    }
    template <int R> INLINE void leaf(int at) {
        butterfly<R, false>(u + at);
        butterfly<R, false>(g + at);
        for (int j = 0; j < R; j++) point(at + j);
        butterfly<R, true>(g + at);
    }
};

struct Tensors {
    const float *grad, *u, *pre, *kernel, *skip;
    float *y, *save, *du, *dk, *dskip;
    int act;
};

// Buffers follow each other by some lines of the cache more than they are long: should they begin at the same place of a
// page, they would be taken for each other.
INLINE int64_t apart(const Plan& plan) { return plan.points + 17; }

// S blocks of channels that are walked side by side, so that of every line of memory all is used while it is there.
template <int S> struct Vectors {
    V at[S];
};

template <int S, bool FULL> struct Side {
    Block<FULL> at[S];
    int64_t H;

    INLINE Channels block(int j) const { return {at[j].first, at[j].count()}; }

    // Places of a sequence are a row of memory apart: unless it is asked for in time, each is waited for.
    INLINE Vectors<S> load(const float* row) const {
        __builtin_prefetch(row + at[0].first + AHEAD * H);
        Vectors<S> v;
        for (int j = 0; j < S; j++) v.at[j] = at[j].load(row);
        return v;
    }

    INLINE void store(float* row, const Vectors<S>& v) const {
        __builtin_prefetch(row + at[0].first + AHEAD * H, 1);
        for (int j = 0; j < S; j++) at[j].store(row, v.at[j]);
    }
};

// Two rows of the batch, one in the real, one in the imaginary part; and back.
template <int S> INLINE Several<S> pair_of(const Vectors<S>& a, const Vectors<S>& b) {
    Several<S> x;
    for (int j = 0; j < S; j++) x.at[j] = {a.at[j], b.at[j]};
    return x;
}

template <int S> INLINE Vectors<S> first_of(const Several<S>& x) {
    Vectors<S> v;
    for (int j = 0; j < S; j++) v.at[j] = x.at[j].re;
    return v;
}

template <int S> INLINE Vectors<S> second_of(const Several<S>& x) {
    Vectors<S> v;
    for (int j = 0; j < S; j++) v.at[j] = x.at[j].im;
    return v;
}

// Buffers: S of K's spectrum, S of rows, `apart` points from one to the next.
template <int S, bool FULL>
INLINE void forward_rows(const Shape& s, const Plan& plan, const Tensors& t, const Side<S, FULL>& side, int64_t from, int64_t to,
                         C* buffers, int64_t apart) {
    const int L = int(s.L);
    C *k = buffers, *x = buffers + S * apart;
    for (int j = 0; j < S; j++) kernel_spectrum(k + j * apart, t.kernel, t.skip, s, plan, side.block(j));
    auto finish = [&](int64_t at, Vectors<S> pre) {
        if (t.save) side.store(t.save + at, pre);
        for (int j = 0; t.act && j < S; j++) pre.at[j] = gelu(pre.at[j]);
        side.store(t.y + at, pre);
    };
    for (int64_t pair = from; pair < to; pair++) {
        const int64_t a = s.row(2 * pair, 0), b = s.row(2 * pair + 1, 0);
        const bool two = 2 * pair + 1 < s.B;
        first_pass<S>(x, apart, plan, L, [&](int i) {
            return pair_of(side.load(t.u + a + i * s.H), two ? side.load(t.u + b + i * s.H) : Vectors<S>{});
        });
        for (int j = 0; j < S; j++) {
            Multiply op{x + j * apart, k + j * apart};
            inside(op, plan);
        }
        last_pass<S>(x, apart, plan, L, [&](int i, const Several<S>& y) {
            finish(a + i * s.H, first_of(y));
            if (two) finish(b + i * s.H, second_of(y));
        });
    }
}

// Writes du, and dK and dD of this group. Buffers: K's spectrum, the sum of spectra, u and its gradient. One block at a
// time: two would ask for more registers and more of the second cache than there is.
template <bool FULL>
INLINE void backward_rows(const Shape& s, const Plan& plan, const Tensors& t, const Side<1, FULL>& side, int64_t from, int64_t to,
                          float* dk, float* dskip, C* buffers, int64_t apart) {
    const int L = int(s.L);
    C *k = buffers, *sum = k + apart, *x = sum + apart, *y = x + apart;
    Sum along;
    kernel_spectrum(k, t.kernel, t.skip, s, plan, side.block(0));
    memset(static_cast<void*>(sum), 0, sizeof(C) * size_t(plan.points));
    auto read = [&](const float* table, int64_t at) { return side.load(table + at).at[0]; };
    auto through_act = [&](int64_t at) {
        const V g = read(t.grad, at);
        return t.act ? g * gelu_slope(read(t.pre, at)) : g;
    };
    for (int64_t pair = from; pair < to; pair++) {
        const int64_t a = s.row(2 * pair, 0), b = s.row(2 * pair + 1, 0);
        const bool two = 2 * pair + 1 < s.B;
        first_pass<2>(x, apart, plan, L, [&](int i) {
            const int64_t skipped = i * s.H;
            const C u = {read(t.u, a + skipped), two ? read(t.u, b + skipped) : V{}};
            const C g = {through_act(a + skipped), two ? through_act(b + skipped) : V{}};
            along.add(g.re * u.re + g.im * u.im);
            return Several<2>{{u, g}};
        });
        Correlate op{x, y, sum, k};
        inside(op, plan);
        last_pass<1>(y, apart, plan, L, [&](int i, const Several<1>& g) {
            side.store(t.du + a + i * s.H, {{g.at[0].re}});
            if (two) side.store(t.du + b + i * s.H, {{g.at[0].im}});
        });
    }
    kernel_from(sum, dk, s, plan, side.block(0));
    along.flush();
    side.at[0].store(dskip, __builtin_convertvector(along.total, V));
}

// f(side) for the next S blocks of channels: side by side where all are full, the usual case, in which their number of
// channels is known when this is compiled; else one by one.
template <int S, class F> INLINE void in_blocks(int64_t task, int64_t H, F f) {
    if ((task + 1) * S * W <= H) {
        Side<S, true> full{{}, H};
        for (int j = 0; j < S; j++) full.at[j].first = (task * S + j) * W;
        return f(full);
    }
    for (int j = 0; j < S; j++) {
        const Channels ch = channels_of(task * S + j, H);
        if (ch.count() == W) f(Side<1, true>{{{ch.first}}, H});
        else if (ch.count()) f(Side<1, false>{{ch}, H});
    }
}

void forward_task(const Shape& s, const Plan& plan, const Tensors& t, int64_t line, int64_t from, int64_t to, C* buffers) {
    in_blocks<SIDE>(line, s.H, [&](const auto& side) __attribute__((always_inline)) {
        forward_rows(s, plan, t, side, from, to, buffers, apart(plan));
    });
}

// The blocks of a line one after the other: of what the first has read, the last cache still has the other half.
void backward_task(const Shape& s, const Plan& plan, const Tensors& t, int64_t line, int64_t from, int64_t to, float* dk, float* dskip,
                   C* buffers) {
    for (int j = 0; j < SIDE; j++)
        in_blocks<1>(line * SIDE + j, s.H, [&](const auto& side) __attribute__((always_inline)) {
            backward_rows(s, plan, t, side, from, to, dk, dskip, buffers, apart(plan));
        });
}

}  // namespace

extern "C" {

int ssmp_lanes() { return W; }

const char* ssmp_source() { return SOURCE; }  // digest of the files that this library was made from

// -> y, and save = u * K + D u, what backward needs of act, unless save is null. Returns a Status.
int ssmp_convolve(const float* u, const float* kernel, const float* skip, float* y, float* save, int64_t B, int64_t L, int64_t H,
                  int directions, int act, int threads) {
    const Shape s{B, L, H, directions};
    const Plan plan(2 * L);
    if (!plan.twiddles) return NO_MEMORY;
    if (B * L * H < TINY) threads = 1;
    const Tensors t{nullptr, u, nullptr, kernel, skip, y, save, nullptr, nullptr, nullptr, act};
    const int64_t groups = groups_forward(s, threads), tasks = groups * lines_of(H);
    int status = DONE;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Scratch<C> buffers(2 * SIDE * apart(plan));
        if (!buffers.at) {
#pragma omp atomic write
            status = NO_MEMORY;
        }
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < tasks; task++) {
            const int64_t group = task % groups, from = s.pairs() * group / groups, to = s.pairs() * (group + 1) / groups;
            if (buffers.at) forward_task(s, plan, t, task / groups, from, to, buffers.at);
        }
    }
    return status;
}

// grad: of y; pre: what was saved if act -> du (B, L, H), dk (directions, L, H), dskip (H). Returns a Status.
int ssmp_convolve_backward(const float* grad, const float* u, const float* pre, const float* kernel, const float* skip, float* du,
                           float* dk, float* dskip, int64_t B, int64_t L, int64_t H, int directions, int act, int threads) {
    const Shape s{B, L, H, directions};
    const Plan plan(2 * L);
    if (!plan.twiddles) return NO_MEMORY;
    if (B * L * H < TINY) threads = 1;
    const Tensors t{grad, u, pre, kernel, skip, nullptr, nullptr, du, dk, dskip, act};
    const int64_t groups = groups_backward(s), tasks = groups * lines_of(H), size = directions * L * H;
    Scratch<float> dks(groups > 1 ? groups * size : 0), dskips(groups > 1 ? groups * H : 0);
    if (!dks.at || !dskips.at) return NO_MEMORY;
    float *into_k = groups > 1 ? dks.at : dk, *into_skip = groups > 1 ? dskips.at : dskip;
    int status = DONE;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Scratch<C> buffers(4 * apart(plan));
        if (!buffers.at) {
#pragma omp atomic write
            status = NO_MEMORY;
        }
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < tasks; task++) {
            const int64_t group = task % groups, from = s.pairs() * group / groups, to = s.pairs() * (group + 1) / groups;
            float *into_dk = into_k + group * size, *into_dskip = into_skip + group * H;
            if (buffers.at) backward_task(s, plan, t, task / groups, from, to, into_dk, into_dskip, buffers.at);
        }
    }
    if (status != DONE || groups == 1) return status;
    sum_pairwise(into_k, groups, size);
    sum_pairwise(into_skip, groups, H);
    memcpy(dk, into_k, sizeof(float) * size_t(size));
    memcpy(dskip, into_skip, sizeof(float) * size_t(H));
    return DONE;
}

}  // extern "C"
