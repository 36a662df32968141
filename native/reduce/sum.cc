#include "reduce/sum.h"

#include <cstring>

#include "reduce/clones.h"
#include "reduce/half.h"

namespace dovetail {

namespace {

template <typename T>
T* as(std::byte* p) {
  return reinterpret_cast<T*>(p);
}
template <typename T>
const T* as(const std::byte* p) {
  return reinterpret_cast<const T*>(p);
}

DOVETAIL_CLONES void addF32(float* __restrict sum, const float* __restrict v, size_t n) {
  for (size_t i = 0; i < n; ++i) sum[i] += v[i];
}
DOVETAIL_CLONES void addF64(double* __restrict sum, const double* __restrict v, size_t n) {
  for (size_t i = 0; i < n; ++i) sum[i] += v[i];
}
DOVETAIL_CLONES void scaleF32(float* out, const float* sum, size_t n, float factor) {
  for (size_t i = 0; i < n; ++i) out[i] = sum[i] * factor;
}
DOVETAIL_CLONES void scaleF64(double* out, const double* sum, size_t n, double factor) {
  for (size_t i = 0; i < n; ++i) out[i] = sum[i] * factor;
}
DOVETAIL_CLONES void joinF32(float* __restrict ours, const float* __restrict v, size_t n, float factor) {
  for (size_t i = 0; i < n; ++i) ours[i] = (ours[i] + v[i]) * factor;
}
DOVETAIL_CLONES void joinF64(double* __restrict ours, const double* __restrict v, size_t n, double factor) {
  for (size_t i = 0; i < n; ++i) ours[i] = (ours[i] + v[i]) * factor;
}
DOVETAIL_CLONES void addBf16(float* __restrict sum, const uint16_t* __restrict v, size_t n) {
  for (size_t i = 0; i < n; ++i) sum[i] += fromBf16(v[i]);
}
DOVETAIL_CLONES void widenBf16(float* __restrict sum, const uint16_t* __restrict v, size_t n) {
  for (size_t i = 0; i < n; ++i) sum[i] = fromBf16(v[i]);
}
DOVETAIL_CLONES void addF16(float* __restrict sum, const uint16_t* __restrict v, size_t n) {
  for (size_t i = 0; i < n; ++i) sum[i] += fromF16(v[i]);
}
DOVETAIL_CLONES void widenF16(float* __restrict sum, const uint16_t* __restrict v, size_t n) {
  for (size_t i = 0; i < n; ++i) sum[i] = fromF16(v[i]);
}
DOVETAIL_CLONES void narrowBf16(uint16_t* __restrict out, const float* __restrict sum, size_t n,
                                float factor) {
  for (size_t i = 0; i < n; ++i) out[i] = toBf16(sum[i] * factor);
}
DOVETAIL_CLONES void narrowF16(uint16_t* __restrict out, const float* __restrict sum, size_t n,
                               float factor) {
  for (size_t i = 0; i < n; ++i) out[i] = toF16(sum[i] * factor);
}

// Eight running sums, so that the additions do not wait for each other.
template <typename T, typename Widen>
inline double squares(const T* v, size_t n, Widen widen) {
  double part[8] = {};
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (size_t j = 0; j < 8; ++j) {
      const double x = widen(v[i + j]);
      part[j] += x * x;
    }
  }
  for (size_t j = 0; i < n; ++i, ++j) {
    const double x = widen(v[i]);
    part[j] += x * x;
  }
  double total = 0;
  for (const double p : part) total += p;
  return total;
}
DOVETAIL_CLONES double squaresF32(const float* v, size_t n) {
  return squares(v, n, [](float x) { return static_cast<double>(x); });
}
DOVETAIL_CLONES double squaresF64(const double* v, size_t n) {
  return squares(v, n, [](double x) { return x; });
}
DOVETAIL_CLONES double squaresBf16(const uint16_t* v, size_t n) {
  return squares(v, n, [](uint16_t x) { return static_cast<double>(fromBf16(x)); });
}
DOVETAIL_CLONES double squaresF16(const uint16_t* v, size_t n) {
  return squares(v, n, [](uint16_t x) { return static_cast<double>(fromF16(x)); });
}

}  // namespace

void startSum(DType type, std::byte* sum, const std::byte* values, size_t count) {
  switch (type) {
    case DType::F32:
    case DType::F64:
      std::memcpy(sum, values, count * sizeOf(type));
      return;
    case DType::BF16:
      return widenBf16(as<float>(sum), as<uint16_t>(values), count);
    case DType::F16:
      return widenF16(as<float>(sum), as<uint16_t>(values), count);
  }
}

void addTo(DType type, std::byte* sum, const std::byte* values, size_t count) {
  switch (type) {
    case DType::F32:
      return addF32(as<float>(sum), as<float>(values), count);
    case DType::F64:
      return addF64(as<double>(sum), as<double>(values), count);
    case DType::BF16:
      return addBf16(as<float>(sum), as<uint16_t>(values), count);
    case DType::F16:
      return addF16(as<float>(sum), as<uint16_t>(values), count);
  }
}

void finishSum(DType type, const std::byte* sum, std::byte* out, size_t count, double factor) {
  if (factor == 1.0 &&
      sizeOf(type) == sumSizeOf(type)) {  // Not a multiplication: bytes may stand for anything.
    if (out != sum) std::memcpy(out, sum, count * sizeOf(type));
    return;
  }
  const auto narrow = static_cast<float>(factor);
  switch (type) {
    case DType::F32:
      return scaleF32(as<float>(out), as<float>(sum), count, narrow);
    case DType::F64:
      return scaleF64(as<double>(out), as<double>(sum), count, factor);
    case DType::BF16:
      return narrowBf16(as<uint16_t>(out), as<float>(sum), count, narrow);
    case DType::F16:
      return narrowF16(as<uint16_t>(out), as<float>(sum), count, narrow);
  }
}

void finishAt(DType type, std::byte* ours, const std::byte* others, size_t count, double factor) {
  if (others == nullptr) return finishSum(type, ours, ours, count, factor);
  if (factor == 1.0) return addTo(type, ours, others, count);
  if (type == DType::F32)
    return joinF32(as<float>(ours), as<float>(others), count, static_cast<float>(factor));
  joinF64(as<double>(ours), as<double>(others), count, factor);
}

double sumOfSquares(DType type, const std::byte* values, size_t count) {
  switch (type) {
    case DType::F32:
      return squaresF32(as<float>(values), count);
    case DType::F64:
      return squaresF64(as<double>(values), count);
    case DType::BF16:
      return squaresBf16(as<uint16_t>(values), count);
    case DType::F16:
      return squaresF16(as<uint16_t>(values), count);
  }
  return 0;
}

}  // namespace dovetail
