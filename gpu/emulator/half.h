// Elements and their conversions. 16-bit floats are bit for bit as the GPU's cvt has them: rounded to nearest even, and NaN
// becomes 0x7fff.
#pragma once
#include <string.h>

namespace mf {

struct half {
  unsigned short bits;
};
struct bfloat {
  unsigned short bits;
};
struct mask {
  unsigned char bits;
};

static inline unsigned bits_of(float x) {
  unsigned out;
  memcpy(&out, &x, 4);
  return out;
}

static inline float float_of(unsigned x) {
  float out;
  memcpy(&out, &x, 4);
  return out;
}

static inline float to_float(float x) { return x; }

static inline float to_float(bfloat x) { return float_of((unsigned)x.bits << 16); }

static inline float to_float(half x) {
  // Shift exponent and mantissa into place and rescale; subnormals by subtracting the implicit one.
  const unsigned word = (unsigned)x.bits << 16, twice = word + word;
  const float normal = float_of((twice >> 4) + (0xe0u << 23)) * 0x1.0p-112f;
  const float subnormal = float_of((twice >> 17) | (126u << 23)) - 0.5f;
  return float_of((word & 0x80000000u) | bits_of(twice < (1u << 27) ? subnormal : normal));
}

static inline float to_float(mask x) { return x.bits != 0 ? 1.0f : 0.0f; }

template <class T>
static inline T from_float(float x);

template <>
inline float from_float<float>(float x) {
  return x;
}

template <>
inline half from_float<half>(float x) {
  const unsigned word = bits_of(x), twice = word + word;
  if (twice > 0xff000000u) return half{0x7fff};
  // The addition rounds: the bias puts the last bit of a half at the last bit of the float.
  float base = (float_of(word & 0x7fffffffu) * 0x1.0p+112f) * 0x1.0p-110f;
  unsigned bias = twice & 0xff000000u;
  if (bias < 0x71000000u) bias = 0x71000000u;
  base = float_of((bias >> 1) + 0x07800000u) + base;
  const unsigned sum = bits_of(base);
  return half{(unsigned short)(((word & 0x80000000u) >> 16) | (((sum >> 13) & 0x7c00u) + (sum & 0x0fffu)))};
}

template <>
inline bfloat from_float<bfloat>(float x) {
  const unsigned word = bits_of(x);
  if ((word & 0x7fffffffu) > 0x7f800000u) return bfloat{0x7fff};
  return bfloat{(unsigned short)((word + 0x7fffu + ((word >> 16) & 1u)) >> 16)};
}

template <>
inline mask from_float<mask>(float x) {
  return mask{(unsigned char)(x != 0.0f)};
}

}  // namespace mf
