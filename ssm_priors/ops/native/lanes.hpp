// A vector holds one number of LANES neighbouring channels; everything here works on all of them at once.
// GCC and clang vector extensions; compiled once with 16 lanes for x86-64-v4 and once with 8 for x86-64-v3.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define INLINE inline __attribute__((always_inline))

namespace {

constexpr int W = LANES;
constexpr int LINE = 16;        // numbers of a line of the cache
constexpr int SIDE = LINE / W;  // vectors of a line
typedef float V __attribute__((vector_size(W * sizeof(float))));
typedef int32_t I __attribute__((vector_size(W * sizeof(int32_t))));
typedef double D __attribute__((vector_size(W * sizeof(double))));

enum Status { DONE = 0, NO_MEMORY = 1 };

// Channels first .. first + W - 1, of which only `count` exist: the rest read as 0 and are never written.
template <bool FULL> struct Block {
    int64_t first;
    int exist = W;

    INLINE int count() const { return FULL ? W : exist; }

    INLINE V load(const float* row) const {
        V v{};
        const float* p = row + first;
        if (count() == W) memcpy(&v, p, sizeof(V));
        else memcpy(&v, p, sizeof(float) * count());
        return v;
    }

    INLINE void store(float* row, V v) const {
        float* p = row + first;
        if (count() == W) memcpy(p, &v, sizeof(V));
        else memcpy(p, &v, sizeof(float) * count());
    }
};

typedef Block<false> Channels;

INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
INLINE int64_t clamp(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

INLINE Channels channels_of(int64_t block, int64_t H) { return {block * W, int(clamp(H - block * W, 0, W))}; }

INLINE int64_t blocks_of(int64_t H) { return ceil_div(H, W); }

INLINE int64_t lines_of(int64_t H) { return ceil_div(H, LINE); }

// Memory of one thread, aligned for vectors; null if there is none.
template <class T> struct Scratch {
    T* at;
    explicit Scratch(int64_t count) {
        const size_t bytes = size_t(count) * sizeof(T);
        at = static_cast<T*>(aligned_alloc(4096, bytes / 4096 * 4096 + 4096));
    }
    ~Scratch() { free(at); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
};

INLINE V splat(float x) { return V{} + x; }

// exp(x) for x <= 0: Cody-Waite reduction and a polynomial of degree 6; 0 below -87. Cephes, expf.
INLINE V exp_negative(V x) {
    V kept = x < -87.0f ? splat(-87.0f) : x;
    V n = (kept * 1.44269504f + 12582912.0f) - 12582912.0f;  // nearest integer
    V r = kept - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    V p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    V whole = n == n ? n : V{};  // a NaN has no integer; it goes on through p
    I bits = (__builtin_convertvector(whole, I) + 127) << 23;
    V power;
    memcpy(&power, &bits, sizeof(V));
    V result = p * power;
    return x < -87.0f ? V{} : result;
}

struct Normal {
    V distribution, density;
};

// Phi(x) and phi(x). Phi(-z sqrt 2) = exp(-z^2) erfcx(z) / 2 with erfcx(z) = t Q(t), t = 1 / (1 + 0.4 z); Q is a fit of
// degree 8 with a relative error of 1.3e-7 on all z >= 0, so that the lower tail keeps its digits too.
INLINE Normal normal(V x) {
    V z = (x < 0.0f ? -x : x) * 0.707106781f;
    V e = exp_negative(-z * z);
    V t = 1.0f / (z * 0.4f + 1.0f);
    V q = t * 0.0502925312f - 0.183025778f;
    q = q * t + 0.169293817f;
    q = q * t - 0.00579200349f;
    q = q * t + 0.141523938f;
    q = q * t + 0.168515816f;
    q = q * t + 0.207846599f;
    q = q * t + 0.225669339f;
    q = q * t + 0.225675867f;
    V tail = q * t * e * 0.5f;
    return {x < 0.0f ? tail : 1.0f - tail, e * 0.398942280f};
}

INLINE V gelu(V x) { return x * normal(x).distribution; }

INLINE V gelu_slope(V x) {
    Normal n = normal(x);
    return n.distribution + x * n.density;
}

// A sum whose error does not grow with the number of its terms: short runs in float, runs in double.
struct Sum {
    V run{};
    D total{};
    int terms = 0;

    INLINE void add(V x) {
        run += x;
        if (++terms == 16) flush();
    }
    INLINE void flush() {
        total += __builtin_convertvector(run, D);
        run = V{};
        terms = 0;
    }
};

// parts: (count, size) -> its first row holds the sum, added pairwise.
inline void sum_pairwise(float* parts, int64_t count, int64_t size) {
    for (int64_t apart = 1; apart < count; apart *= 2)
        for (int64_t i = 0; i + apart < count; i += 2 * apart) {
            float *__restrict into = parts + i * size, *__restrict from = parts + (i + apart) * size;
            for (int64_t j = 0; j < size; j++) into[j] += from[j];
        }
}

}  // namespace
