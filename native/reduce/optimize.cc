#include "reduce/optimize.h"

#include <cmath>

#include "reduce/clones.h"

namespace dovetail {

namespace {

// The multiply-adds below are fused exactly where torch's vector kernels fuse them.
inline float fused(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
inline double fused(double a, double b, double c) {
  return __builtin_fma(a, b, c);
}

template <typename T>
struct Sgd {
  T factor, lr, momentum, keep, weightDecay;  // keep = 1 - dampening
  bool nesterov, maximize, first, decays, hasMomentum;
};

template <typename T>
inline __attribute__((always_inline)) void sgdLoop(const Sgd<T>& s, const T* __restrict sum,
                                                   T* __restrict value, T* __restrict buffer, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    T g = sum[i] * s.factor;
    if (s.maximize) g = -g;
    if (s.decays) g = fused(value[i], s.weightDecay, g);
    if (s.hasMomentum) {
      const T b = s.first ? g : fused(g, s.keep, buffer[i] * s.momentum);
      buffer[i] = b;
      g = s.nesterov ? fused(b, s.momentum, g) : b;
    }
    value[i] = fused(g, -s.lr, value[i]);
  }
}

template <typename T>
struct Adam {
  T factor, shrink, weightDecay, weight1, beta2, weight2, correction2, eps, stepSize;
  bool maximize, decays, decoupled;
};

template <typename T>
inline __attribute__((always_inline)) void adamLoop(const Adam<T>& a, const T* __restrict sum,
                                                    T* __restrict value, T* __restrict average,
                                                    T* __restrict square, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    T g = sum[i] * a.factor;
    T v = value[i];
    if (a.maximize) g = -g;
    if (a.decays) {
      if (a.decoupled) {
        v = v * a.shrink;
      } else {
        g = fused(v, a.weightDecay, g);
      }
    }
    const T gap = g - average[i];
    const T m = a.weight1 < T(0.5) ? fused(a.weight1, gap, average[i]) : fused(-(T(1) - a.weight1), gap, g);
    const T q = fused(a.weight2 * g, g, square[i] * a.beta2);
    average[i] = m;
    square[i] = q;
    const T spread = std::sqrt(q) / a.correction2 + a.eps;
    value[i] = v - a.stepSize * m / spread;
  }
}

DOVETAIL_CLONES void sgdF32(const Sgd<float>& s, const float* g, float* v, float* b, size_t n) {
  sgdLoop(s, g, v, b, n);
}
DOVETAIL_CLONES void sgdF64(const Sgd<double>& s, const double* g, double* v, double* b, size_t n) {
  sgdLoop(s, g, v, b, n);
}
DOVETAIL_CLONES void adamF32(const Adam<float>& a, const float* g, float* v, float* m, float* q, size_t n) {
  adamLoop(a, g, v, m, q, n);
}
DOVETAIL_CLONES void adamF64(const Adam<double>& a, const double* g, double* v, double* m, double* q,
                             size_t n) {
  adamLoop(a, g, v, m, q, n);
}

template <typename T>
Sgd<T> sgdOf(const Update& u) {
  const Hyper& h = u.hyper;
  return {.factor = T(u.factor),
          .lr = T(h.lr),
          .momentum = T(h.momentum),
          .keep = T(1 - h.dampening),
          .weightDecay = T(h.weightDecay),
          .nesterov = (u.flags & kNesterov) != 0,
          .maximize = (u.flags & kMaximize) != 0,
          .first = u.firstMomentum,
          .decays = h.weightDecay != 0,
          .hasMomentum = h.momentum != 0};
}

template <typename T>
Adam<T> adamOf(const Update& u) {
  const Hyper& h = u.hyper;
  return {.factor = T(u.factor),
          .shrink = T(1 - h.lr * h.weightDecay),
          .weightDecay = T(h.weightDecay),
          .weight1 = T(1 - h.beta1),
          .beta2 = T(h.beta2),
          .weight2 = T(1 - h.beta2),
          .correction2 = T(std::sqrt(1 - std::pow(h.beta2, u.step))),
          .eps = T(h.eps),
          .stepSize = T(h.lr / (1 - std::pow(h.beta1, u.step))),
          .maximize = (u.flags & kMaximize) != 0,
          .decays = h.weightDecay != 0,
          .decoupled = u.rule == Rule::AdamW};
}

}  // namespace

void applyUpdate(DType type, const Update& update, const std::byte* sum, std::byte* value, std::byte* first,
                 std::byte* second, size_t count) {
  if (type == DType::F32) {
    const auto* g = reinterpret_cast<const float*>(sum);
    auto *v = reinterpret_cast<float*>(value), *a = reinterpret_cast<float*>(first),
         *b = reinterpret_cast<float*>(second);
    if (update.rule == Rule::Sgd) return sgdF32(sgdOf<float>(update), g, v, a, count);
    return adamF32(adamOf<float>(update), g, v, a, b, count);
  }
  const auto* g = reinterpret_cast<const double*>(sum);
  auto *v = reinterpret_cast<double*>(value), *a = reinterpret_cast<double*>(first),
       *b = reinterpret_cast<double*>(second);
  if (update.rule == Rule::Sgd) return sgdF64(sgdOf<double>(update), g, v, a, count);
  adamF64(adamOf<double>(update), g, v, a, b, count);
}

}  // namespace dovetail
