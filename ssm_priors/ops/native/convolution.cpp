// y = act(u * K + D u) and its gradients, channels last, one- or two-sided; act is GELU or nothing.
//
// u, y: (B, L, H); K: (directions, L, H); D: (H). A task is a block of W channels with a group of rows of the batch, taken
// two at a time. Forward, rows do not meet, so any split gives the same bits; backward, they meet in dK and dD, whose
// groups depend on the shape alone and are summed pairwise: the same bits from any number of threads.

#include "fft.hpp"

namespace {

constexpr int64_t TINY = 32768;    // numbers of u below which threads cost more than they bring
constexpr int64_t WANTED = 32;     // tasks that backward makes where the batch allows
constexpr int64_t FEWEST = 4, MOST = 16;  // pairs of rows in a group of backward: K's spectrum is made anew for each

struct Shape {
    int64_t B, L, H;
    int directions;

    INLINE int64_t pairs() const { return (B + 1) / 2; }
    INLINE int64_t row(int64_t b, int64_t t) const { return (b * L + t) * H; }
};

INLINE int64_t groups_forward(const Shape& s, int threads) {
    return clamp(ceil_div(2 * threads, blocks_of(s.H)), 1, s.pairs());
}

INLINE int64_t groups_backward(const Shape& s) {
    int64_t wanted = clamp(ceil_div(WANTED, blocks_of(s.H)), 1, ceil_div(s.pairs(), FEWEST));
    int64_t needed = ceil_div(s.pairs(), MOST);
    return wanted > needed ? wanted : needed;
}

// The kernel's spectrum divided by the number of points. Lag -s - 1 of the second direction stands at points - s - 1.
void kernel_spectrum(C* x, const float* kernel, const Shape& s, const Plan& plan, const Channels& ch) {
    const float scale = 1.0f / float(plan.points);
    const int L = int(s.L), M = plan.points;
    auto past = [&](int t) { return C{ch.load(kernel + t * s.H) * scale, V{}}; };
    Forward op{x};
    if (s.directions == 1) {
        first_pass(x, plan, L, past);
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
    if (s.directions == 1) return last_pass(x, plan, L, [&](int t, C y) { ch.store(kernel + t * s.H, y.re * scale); });
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

INLINE void forward_rows(const Shape& s, const Plan& plan, const Tensors& t, const Channels& ch, int64_t from, int64_t to, C* k,
                         C* x) {
    const int L = int(s.L);
    const V skip = ch.load(t.skip);
    kernel_spectrum(k, t.kernel, s, plan, ch);
    auto finish = [&](int64_t at, V sum) {
        V pre = sum + skip * ch.load(t.u + at);
        if (t.save) ch.store(t.save + at, pre);
        if (t.act) pre = gelu(pre);
        ch.store(t.y + at, pre);
    };
    for (int64_t pair = from; pair < to; pair++) {
        const int64_t a = s.row(2 * pair, 0), b = s.row(2 * pair + 1, 0);
        const bool two = 2 * pair + 1 < s.B;
        first_pass(x, plan, L, [&](int i) { return C{ch.load(t.u + a + i * s.H), two ? ch.load(t.u + b + i * s.H) : V{}}; });
        Multiply op{x, k};
        inside(op, plan);
        last_pass(x, plan, L, [&](int i, C y) {
            finish(a + i * s.H, y.re);
            if (two) finish(b + i * s.H, y.im);
        });
    }
}

// Writes du, and dK and dD of this group.
INLINE void backward_rows(const Shape& s, const Plan& plan, const Tensors& t, const Channels& ch, int64_t from, int64_t to, float* dk,
                          float* dskip, C* k, C* x, C* y, C* sum) {
    const int L = int(s.L);
    const V skip = ch.load(t.skip);
    Sum along;
    kernel_spectrum(k, t.kernel, s, plan, ch);
    memset(static_cast<void*>(sum), 0, sizeof(C) * size_t(plan.points));
    auto through_act = [&](int64_t at) {
        V g = ch.load(t.grad + at);
        if (t.act) g *= gelu_slope(ch.load(t.pre + at));
        ch.store(t.du + at, g);
        along.add(g * ch.load(t.u + at));
        return g;
    };
    auto finish = [&](int64_t at, V g) { ch.store(t.du + at, g + skip * ch.load(t.du + at)); };
    for (int64_t pair = from; pair < to; pair++) {
        const int64_t a = s.row(2 * pair, 0), b = s.row(2 * pair + 1, 0);
        const bool two = 2 * pair + 1 < s.B;
        first_pass(x, plan, L, [&](int i) { return C{ch.load(t.u + a + i * s.H), two ? ch.load(t.u + b + i * s.H) : V{}}; });
        first_pass(y, plan, L, [&](int i) { return C{through_act(a + i * s.H), two ? through_act(b + i * s.H) : V{}}; });
        Correlate op{x, y, sum, k};
        inside(op, plan);
        last_pass(y, plan, L, [&](int i, C g) {
            finish(a + i * s.H, g.re);
            if (two) finish(b + i * s.H, g.im);
        });
    }
    kernel_from(sum, dk, s, plan, ch);
    along.flush();
    ch.store(dskip, __builtin_convertvector(along.total, V));
}

// A full block, the usual case, has code of its own, in which the number of channels is known.
void forward_task(const Shape& s, const Plan& plan, const Tensors& t, const Channels& ch, int64_t from, int64_t to, C* k, C* x) {
    if (ch.count == W) forward_rows(s, plan, t, {ch.first, W}, from, to, k, x);
    else forward_rows(s, plan, t, ch, from, to, k, x);
}

void backward_task(const Shape& s, const Plan& plan, const Tensors& t, const Channels& ch, int64_t from, int64_t to, float* dk,
                   float* dskip, C* k, C* x, C* y, C* sum) {
    if (ch.count == W) backward_rows(s, plan, t, {ch.first, W}, from, to, dk, dskip, k, x, y, sum);
    else backward_rows(s, plan, t, ch, from, to, dk, dskip, k, x, y, sum);
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
    const int64_t groups = groups_forward(s, threads), tasks = groups * blocks_of(H);
    int status = DONE;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Scratch<C> k(plan.points), x(plan.points, 1);
        const bool ready = k.at && x.at;
        if (!ready) {
#pragma omp atomic write
            status = NO_MEMORY;
        }
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < tasks; task++) {
            const int64_t group = task % groups;
            const Channels ch = channels_of(task / groups, H);
            if (ready) forward_task(s, plan, t, ch, s.pairs() * group / groups, s.pairs() * (group + 1) / groups, k.at, x.at);
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
    const int64_t groups = groups_backward(s), tasks = groups * blocks_of(H), size = directions * L * H;
    Scratch<float> dks(groups > 1 ? groups * size : 0), dskips(groups > 1 ? groups * H : 0);
    if (!dks.at || !dskips.at) return NO_MEMORY;
    float *into_k = groups > 1 ? dks.at : dk, *into_skip = groups > 1 ? dskips.at : dskip;
    int status = DONE;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Scratch<C> k(plan.points), x(plan.points, 1), y(plan.points, 2), sum(plan.points, 3);
        const bool ready = k.at && x.at && y.at && sum.at;
        if (!ready) {
#pragma omp atomic write
            status = NO_MEMORY;
        }
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < tasks; task++) {
            const int64_t group = task % groups;
            const Channels ch = channels_of(task / groups, H);
            if (ready)
                backward_task(s, plan, t, ch, s.pairs() * group / groups, s.pairs() * (group + 1) / groups, into_k + group * size,
                              into_skip + group * H, k.at, x.at, y.at, sum.at);
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
