// Products of float32 on tensor cores: a part of the device layer that only kernels with such products include. Its twin
// for the emulator is in gpu/emulator/device.h.
//
// Tensor cores multiply TF32, numbers of 11 significant bits. A float is split into x = h + l + e: h is x rounded to
// nearest, l is x - h without its last bits, and |e| <= 2^-23 |x|. Of (h + l) (h' + l') three products are computed,
// h h' and the two that have one l; l l' is at most 2^-22 |x x'|. Each 16 terms are summed on their own and added as
// floats are, to nearest, because tensor cores cut off what they add to a larger sum. h is finite: above the largest
// number of TF32, x rounds to that. So an infinite or NaN operand has an infinite or NaN l, which decides the two products
// that have it.
#pragma once

#ifndef MF_EMULATE

namespace mf {

// The largest float that rounds to a finite number of TF32.
constexpr float kLargestRounded = 0x1.ffdffep+127f;

// x, or the number of its sign nearest to it that rounds to a finite number of TF32.
MF_DEVICE float clamp_to_tf32(float x) {
#if __CUDA_ARCH__ >= 860
  float clamped;
  asm("min.xorsign.abs.f32 %0, %1, %2;" : "=f"(clamped) : "f"(x), "f"(kLargestRounded));
  return clamped;
#else
  return ::fminf(::fmaxf(x, -kLargestRounded), kLargestRounded);
#endif
}

MF_DEVICE void split(float x, unsigned& high, unsigned& low) {
  high = (__float_as_uint(clamp_to_tf32(x)) + 0x1000u) & 0xffffe000u;
  low = __float_as_uint(x - __uint_as_float(high)) & 0xffffe000u;
}

// d += a x b, m16n8k8. Positions 2t and 2t + 1 of the inner dim take the places of t and t + 4 in both fragments.
MF_DEVICE void mma_tf32(float (&d)[4], const unsigned* a, const unsigned* b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[2]), "r"(a[1]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// d[d_at .. +3] += a[a_at .. +7] x b[b_at .. +3], of 16 inner positions: with g = lane / 4 and t = lane % 4, a[i] is row
// g + 8 (i / 2 % 2), inner 2t + i % 2 + 8 (i / 4), and b[i] is inner 2t + i % 2 + 8 (i / 2), column g.
template <class T>
MF_DEVICE void mma(float* d, int d_at, const float* a, int a_at, const float* b, int b_at) {
  static_assert(sizeof(T) == 4, "operands in floats are of float32");
  unsigned high_a[8], low_a[8], high_b[4], low_b[4];
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f}, rest[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < 8; ++i) split(a[a_at + i], high_a[i], low_a[i]);
#pragma unroll
  for (int i = 0; i < 4; ++i) split(b[b_at + i], high_b[i], low_b[i]);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    mma_tf32(rest, low_a + 4 * i, high_b + 2 * i);
    mma_tf32(rest, high_a + 4 * i, low_b + 2 * i);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) mma_tf32(sum, high_a + 4 * i, high_b + 2 * i);
#pragma unroll
  for (int i = 0; i < 4; ++i) d[d_at + i] += sum[i] + rest[i];
}

}  // namespace mf

#endif
