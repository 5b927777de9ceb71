// Complex FFT of W channels at once, two real sequences a channel: one in the real, one in the imaginary part.
//
// Depth first and in place: decimation in frequency on the way down, in time on the way back, so that a spectrum is only
// ever held in digit-reversed order, and a part that fits in cache is finished before the next begins. The size is
// 4 times a product of 2, 3, 4 and 5. Sequences fill half of it at most, so the first pass down reads two of its four
// quarters (the others are 0) and the last pass up writes two.
// Source: Cooley and Tukey 1965, doi 10.1090/S0025-5718-1965-0178586-1; Gentleman and Sande 1966, doi 10.1145/1464291.1464352.
#pragma once

#include "lanes.hpp"

namespace {

struct C {
    V re, im;
};

INLINE C operator+(C a, C b) { return {a.re + b.re, a.im + b.im}; }
INLINE C operator-(C a, C b) { return {a.re - b.re, a.im - b.im}; }
INLINE C operator*(C a, float s) { return {a.re * s, a.im * s}; }
INLINE C operator*(C a, C b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
INLINE C conj_times(C a, C b) { return {a.re * b.re + a.im * b.im, a.re * b.im - a.im * b.re}; }  // conj(a) b
INLINE C turn(C a, float re, float im) { return {a.re * re - a.im * im, a.re * im + a.im * re}; }

// -i a on the way down, +i a on the way back.
template <bool BACK> INLINE C quarter(C a) { return BACK ? C{-a.im, a.re} : C{a.im, -a.re}; }

template <bool BACK> INLINE void butterfly2(C* x) {
    C a = x[0], b = x[1];
    x[0] = a + b;
    x[1] = a - b;
}

template <bool BACK> INLINE void butterfly3(C* x) {
    C sum = x[1] + x[2], turned = quarter<BACK>(x[1] - x[2]) * 0.866025404f, middle = x[0] - sum * 0.5f;
    x[0] = x[0] + sum;
    x[1] = middle + turned;
    x[2] = middle - turned;
}

template <bool BACK> INLINE void butterfly4(C* x) {
    C s = x[0] + x[2], t = x[0] - x[2], u = x[1] + x[3], v = quarter<BACK>(x[1] - x[3]);
    x[0] = s + u;
    x[1] = t + v;
    x[2] = s - u;
    x[3] = t - v;
}

template <bool BACK> INLINE void butterfly5(C* x) {
    constexpr float c1 = 0.309016994f, c2 = -0.809016994f, s1 = 0.951056516f, s2 = 0.587785252f;
    C t1 = x[1] + x[4], t2 = x[2] + x[3], t3 = quarter<BACK>(x[1] - x[4]), t4 = quarter<BACK>(x[2] - x[3]);
    C m1 = x[0] + t1 * c1 + t2 * c2, m2 = x[0] + t1 * c2 + t2 * c1, n1 = t3 * s1 + t4 * s2, n2 = t3 * s2 - t4 * s1;
    x[0] = x[0] + t1 + t2;
    x[1] = m1 + n1;
    x[2] = m2 + n2;
    x[3] = m2 - n2;
    x[4] = m1 - n1;
}

template <int R, bool BACK> INLINE void butterfly(C* x) {
    if constexpr (R == 2) butterfly2<BACK>(x);
    else if constexpr (R == 3) butterfly3<BACK>(x);
    else if constexpr (R == 4) butterfly4<BACK>(x);
    else if constexpr (R == 5) butterfly5<BACK>(x);
}

// One level of the recursion: blocks of `size` points are cut into `radix` parts.
struct Level {
    int radix, size;
    const float* twiddles;  // for each k < size / radix: (re, im) of w^(jk), j = 1 .. radix - 1
};

constexpr int MOST_LEVELS = 32;

struct Plan {
    int points = 0, levels = 0;
    Level level[MOST_LEVELS];
    float* twiddles = nullptr;

    // A plan for circles of at least `least` points; `twiddles` stays null if there is no memory.
    explicit Plan(int64_t least) {
        int radices[MOST_LEVELS];
        points = cheapest(least, radices, levels);
        size_t count = 1;
        for (int i = 0, size = points; i < levels; size /= radices[i++]) count += size_t(size / radices[i]) * (radices[i] - 1) * 2;
        twiddles = static_cast<float*>(malloc(count * sizeof(float)));
        float* next = twiddles;
        for (int i = 0, size = points; twiddles && i < levels; size /= radices[i++]) {
            level[i] = {radices[i], size, next};
            for (int k = 0; k < size / radices[i]; k++)
                for (int j = 1; j < radices[i]; j++) {
                    double angle = -2 * M_PI * (double(j) * k / size);
                    *next++ = float(cos(angle));
                    *next++ = float(sin(angle));
                }
        }
    }
    ~Plan() { free(twiddles); }
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;

  private:
    // 4 2^a 3^b 5^c >= least with the fewest operations; weights are additions and products a point of one pass.
    static int cheapest(int64_t least, int* radices, int& levels) {
        double lowest = INFINITY;
        int best = 0;
        for (int64_t five = 1; five <= 125; five *= 5)
            for (int64_t three = 1; three <= 27; three *= 3) {
                int64_t odd = three * five, points = 4 * odd;
                while (points < least) points *= 2;
                int twos = 0, threes = 0, fives = 0;
                for (int64_t rest = points / odd; rest > 1; rest /= 2) twos++;
                for (int64_t rest = three; rest > 1; rest /= 3) threes++;
                for (int64_t rest = five; rest > 1; rest /= 5) fives++;
                double cost = double(points) * (8.5 * (twos / 2) + 5 * (twos % 2) + 9.3 * threes + 13.6 * fives);
                if (cost >= lowest) continue;
                lowest = cost;
                best = int(points);
                levels = 0;
                for (int i = 0; i < twos / 2; i++) radices[levels++] = 4;
                for (int i = 0; i < threes; i++) radices[levels++] = 3;
                for (int i = 0; i < fives; i++) radices[levels++] = 5;
                if (twos % 2) radices[levels++] = 2;
            }
        return best;
    }
};

template <int R> INLINE void down(C* __restrict x, const Level& level) {
    const int q = level.size / R;
    const float* w = level.twiddles;
    for (int k = 0; k < q; k++, w += 2 * (R - 1)) {
        C y[R];
        for (int j = 0; j < R; j++) y[j] = x[k + j * q];
        butterfly<R, false>(y);
        x[k] = y[0];
        for (int j = 1; j < R; j++) x[k + j * q] = turn(y[j], w[2 * j - 2], w[2 * j - 1]);
    }
}

template <int R> INLINE void up(C* __restrict x, const Level& level) {
    const int q = level.size / R;
    const float* w = level.twiddles;
    for (int k = 0; k < q; k++, w += 2 * (R - 1)) {
        C y[R];
        y[0] = x[k];
        for (int j = 1; j < R; j++) y[j] = turn(x[k + j * q], w[2 * j - 2], -w[2 * j - 1]);
        butterfly<R, true>(y);
        for (int j = 0; j < R; j++) x[k + j * q] = y[j];
    }
}

inline void pass_down(C* x, const Level& level) {
    switch (level.radix) {
        case 2: return down<2>(x, level);
        case 3: return down<3>(x, level);
        case 4: return down<4>(x, level);
        default: return down<5>(x, level);
    }
}

inline void pass_up(C* x, const Level& level) {
    switch (level.radix) {
        case 2: return up<2>(x, level);
        case 3: return up<3>(x, level);
        case 4: return up<4>(x, level);
        default: return up<5>(x, level);
    }
}

// The two innermost levels: without a call for every few points.
template <int R, class Op> INLINE void leaves(Op& op, int at, const Level& level) {
    op.down(at, level);
    for (int j = 0; j < level.radix; j++) op.template leaf<R>(at + j * R);
    op.up(at, level);
}

// Down, then the leaves, then up: the same walk for every operation, on one or two buffers.
template <class Op> void walk(Op& op, int at, const Level* level, const Level* end) {
    if (level == end) return op.point(at);
    if (level + 1 == end) {
        switch (level->radix) {
            case 2: return op.template leaf<2>(at);
            case 3: return op.template leaf<3>(at);
            case 4: return op.template leaf<4>(at);
            default: return op.template leaf<5>(at);
        }
    }
    if (level + 2 == end) {
        switch (level[1].radix) {
            case 2: return leaves<2>(op, at, *level);
            case 3: return leaves<3>(op, at, *level);
            case 4: return leaves<4>(op, at, *level);
            default: return leaves<5>(op, at, *level);
        }
    }
    const int part = level->size / level->radix;
    op.down(at, *level);
    for (int j = 0; j < level->radix; j++) walk(op, at + j * part, level + 1, end);
    op.up(at, *level);
}

// The spectrum of x, in place.
struct Forward {
    C* x;
    INLINE void down(int at, const Level& level) { pass_down(x + at, level); }
    INLINE void up(int, const Level&) {}
    INLINE void point(int) {}
    template <int R> INLINE void leaf(int at) { butterfly<R, false>(x + at); }
};

// Back from a spectrum, in place, times the number of points.
struct Backward {
    C* x;
    INLINE void down(int, const Level&) {}
    INLINE void up(int at, const Level& level) { pass_up(x + at, level); }
    INLINE void point(int) {}
    template <int R> INLINE void leaf(int at) { butterfly<R, true>(x + at); }
};

// What stands at one place of several buffers, which follow each other `apart` points from one to the next.
template <int S> struct Several {
    C at[S];
};

// The first pass of sequences that fill the first half of their circle at most. load(t): their numbers at t.
template <int S, class Load> INLINE void first_pass(C* x, int64_t apart, const Plan& plan, int L, Load load) {
    const int q = plan.points / 4;
    const float* w = plan.level[0].twiddles;
    for (int k = 0; k < q; k++, w += 6) {
        const Several<S> low = k < L ? load(k) : Several<S>{}, high = k + q < L ? load(k + q) : Several<S>{};
        for (int j = 0; j < S; j++) {
            const C a = low.at[j], b = high.at[j], turned = quarter<false>(b);
            C* into = x + j * apart + k;
            into[0] = a + b;
            into[q] = turn(a + turned, w[0], w[1]);
            into[2 * q] = turn(a - b, w[2], w[3]);
            into[3 * q] = turn(a - turned, w[4], w[5]);
        }
    }
}

// The last pass, of which only the first L numbers are wanted. store(t, numbers).
template <int S, class Store> INLINE void last_pass(const C* x, int64_t apart, const Plan& plan, int L, Store store) {
    const int q = plan.points / 4;
    const float* w = plan.level[0].twiddles;
    for (int k = 0; k < q && k < L; k++, w += 6) {
        Several<S> low, high;
        for (int j = 0; j < S; j++) {
            const C* from = x + j * apart + k;
            const C a = from[0], b = turn(from[q], w[0], -w[1]), c = turn(from[2 * q], w[2], -w[3]), d = turn(from[3 * q], w[4], -w[5]);
            low.at[j] = a + c + (b + d);
            high.at[j] = a - c + quarter<true>(b - d);
        }
        store(k, low);
        if (k + q < L) store(k + q, high);
    }
}

// Everything below the first pass, quarter by quarter.
template <class Op> INLINE void inside(Op& op, const Plan& plan) {
    for (int j = 0; j < 4; j++) walk(op, j * (plan.points / 4), plan.level + 1, plan.level + plan.levels);
}

}  // namespace
