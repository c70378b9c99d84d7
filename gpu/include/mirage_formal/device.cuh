// The device layer: everything that generated kernels call. One small interface, two implementations: inline PTX below,
// and the emulator of gpu/emulator for g++ (MF_EMULATE), in which the same text runs without a GPU and is checked. At the
// end stand the functions that both have in common.
//
// It needs no other header: NVRTC has neither <stdint.h> nor cuda_fp16.h without extra packages.
//
// Elements: mf::half, mf::bfloat, float and mf::mask in memory, float in registers; conversion happens on access, rounding
// to nearest even. A mask is a byte, in registers 0 or 1. Addresses are (buffer, element index), never raw pointers, so that the emulator can name what it faults.
#pragma once

#ifdef MF_EMULATE
#include "device.h"
#else

#define MF_DEVICE static __device__ __forceinline__
// Parameters of a kernel: read, or written.
#define MF_INPUT(type) const type* __restrict__
#define MF_OUTPUT(type) type* __restrict__
// A parameter that is read behind grid_wait. It is not __restrict__: that would say that nobody writes it while the
// kernel runs, and the compiler could load from it before the wait (as ld.global.nc, which no barrier holds back).
#define MF_AWAITED(type) const type*
// The dynamic shared memory of the block, and one buffer of it: `count` elements at byte `offset`.
#define MF_SHARED_MEMORY(bytes) extern __shared__ __align__(1024) unsigned char mf_shared[]
#define MF_SHARED(type, name, count, offset) type* const name = reinterpret_cast<type*>(mf_shared + (offset))
// Register arrays, undefined at first: floats, and 32-bit words that hold two 16-bit elements each.
#define MF_FLOATS(name, count) float name[count]
#define MF_WORDS(name, count) unsigned name[count]

namespace mf {

struct __align__(2) half {
  unsigned short bits;
};
struct __align__(2) bfloat {
  unsigned short bits;
};
struct mask {
  unsigned char bits;
};

// A coordinate of the launch, which has this extent: divisions of it become shifts.
template <int Extent>
MF_DEVICE int below(unsigned coordinate) {
  const int out = static_cast<int>(coordinate);
  __builtin_assume(out >= 0);
  __builtin_assume(out < Extent);
  return out;
}

// --- conversions -----------------------------------------------------------------------------------------------------

MF_DEVICE float to_float(float x) { return x; }

MF_DEVICE float to_float(half x) {
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(x.bits));
  return out;
}

MF_DEVICE float to_float(bfloat x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }

MF_DEVICE float to_float(mask x) { return x.bits != 0 ? 1.0f : 0.0f; }

template <class T>
MF_DEVICE T from_float(float x);

template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}

template <>
__device__ __forceinline__ half from_float<half>(float x) {
  half out;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
  return out;
}

template <>
__device__ __forceinline__ bfloat from_float<bfloat>(float x) {
  bfloat out;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
  return out;
}

template <>
__device__ __forceinline__ mask from_float<mask>(float x) {
  return mask{static_cast<unsigned char>(x != 0.0f)};
}

// Two elements in one word, `low` in the lower bits.
template <class T>
MF_DEVICE unsigned pack(float low, float high);

template <>
__device__ __forceinline__ unsigned pack<half>(float low, float high) {
  unsigned out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}

template <>
__device__ __forceinline__ unsigned pack<bfloat>(float low, float high) {
  unsigned out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}

template <class T>
MF_DEVICE float low(unsigned word) {
  return to_float(T{static_cast<unsigned short>(word)});
}

template <class T>
MF_DEVICE float high(unsigned word) {
  return to_float(T{static_cast<unsigned short>(word >> 16)});
}

// --- functions of floats ---------------------------------------------------------------------------------------------

MF_DEVICE float infinity() { return __int_as_float(0x7f800000); }

// exp, sqrt and rsqrt are the machine's own, right to about one unit in the last place.
MF_DEVICE float exp(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x * 1.4426950408889634f));
  return out;
}

// Full range, at most 2 ulp.
MF_DEVICE float div(float a, float b) {
  float out;
  asm("div.full.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
  return out;
}

MF_DEVICE float rsqrt(float x) {
  float out;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

MF_DEVICE float sqrt(float x) {
  float out;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

// NaN where one of both is, as PyTorch has it; ::fmaxf and ::fminf would give the other one.
MF_DEVICE float max(float a, float b) {
  float out;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
  return out;
}

MF_DEVICE float min(float a, float b) {
  float out;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
  return out;
}

template <int N>
MF_DEVICE void fill(float (&array)[N], float value) {
#pragma unroll
  for (int i = 0; i < N; ++i) array[i] = value;
}

// --- memory ----------------------------------------------------------------------------------------------------------

template <int Bytes>
struct Vector;
template <>
struct Vector<2> {
  typedef unsigned short type;
};
template <>
struct Vector<4> {
  typedef unsigned type;
};
template <>
struct Vector<8> {
  typedef uint2 type;
};
template <>
struct Vector<16> {
  typedef uint4 type;
};

template <class T>
MF_DEVICE float load(const T* buffer, int index) {
  return to_float(buffer[index]);
}

// array[at .. at+N-1] = buffer[index .. index+N-1] in one access, aligned to its size.
template <int N, class T>
MF_DEVICE void load_vector(float* array, int at, const T* buffer, int index) {
  typedef typename Vector<N * static_cast<int>(sizeof(T))>::type V;
  union {
    V vector;
    unsigned words[(sizeof(V) + 3) / 4];
  } data;
  data.vector = *reinterpret_cast<const V*>(buffer + index);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if constexpr (sizeof(T) == 4) {
      array[at + i] = __uint_as_float(data.words[i]);
    } else if constexpr (sizeof(T) == 1) {
      array[at + i] = to_float(T{static_cast<unsigned char>(data.words[i / 4] >> 8 * (i % 4))});
    } else {
      array[at + i] = i % 2 == 0 ? low<T>(data.words[i / 2]) : high<T>(data.words[i / 2]);
    }
  }
}

template <class T>
MF_DEVICE void store(T* buffer, int index, float value) {
  buffer[index] = from_float<T>(value);
}

// buffer[index .. index+N-1] = values in one access, aligned to its size.
template <class T, int N>
MF_DEVICE void store_vector(T* buffer, int index, const float (&values)[N]) {
  typedef typename Vector<N * static_cast<int>(sizeof(T))>::type V;
  union {
    V vector;
    unsigned words[(sizeof(V) + 3) / 4];
  } data;
#pragma unroll
  for (int i = 0; i < static_cast<int>((sizeof(V) + 3) / 4); ++i) {
    if constexpr (sizeof(T) == 4) {
      data.words[i] = __float_as_uint(values[i]);
    } else if constexpr (sizeof(T) == 1) {
      data.words[i] = 0;
#pragma unroll
      for (int k = 0; k < 4 && 4 * i + k < N; ++k) {
        data.words[i] |= static_cast<unsigned>(from_float<T>(values[4 * i + k]).bits) << 8 * k;
      }
    } else {
      data.words[i] = pack<T>(values[2 * i], values[2 * i + 1]);
    }
  }
  *reinterpret_cast<V*>(buffer + index) = data.vector;
}

// --- asynchronous copies, sm_80 --------------------------------------------------------------------------------------

MF_DEVICE unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// buffer[index ..] = param[source ..], 16, 8 or 4 bytes; zeros, and nothing is read, where `valid` is 0. Only copies of
// 16 bytes can pass by the L1 cache. They bring whole lines of 128 bytes into L2, which saves 3 % of 174 kernels with
// products (geometric mean on an H200; weights of 117 MB behind one row of 14,336 take 30.3 us for 33.2), costs none of
// them more than 2.5 %, and beats pairs of lines.
template <int Bytes = 16, class T>
MF_DEVICE void copy_async(T* buffer, int index, const T* param, int source) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "cp.async copies 4, 8 or 16 bytes");
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;"
                 :
                 : "r"(shared_address(buffer + index)), "l"(__cvta_generic_to_global(param + source))
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                 :
                 : "r"(shared_address(buffer + index)), "l"(__cvta_generic_to_global(param + source)), "n"(Bytes)
                 : "memory");
  }
}

template <int Bytes = 16, class T>
MF_DEVICE void copy_async(T* buffer, int index, const T* param, int source, int valid) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "cp.async copies 4, 8 or 16 bytes");
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(buffer + index)), "l"(__cvta_generic_to_global(param + (valid ? source : 0))),
                   "r"(valid ? 16 : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :
                 : "r"(shared_address(buffer + index)), "l"(__cvta_generic_to_global(param + (valid ? source : 0))),
                   "n"(Bytes), "r"(valid ? Bytes : 0)
                 : "memory");
  }
}

MF_DEVICE void commit() { asm volatile("cp.async.commit_group;" : : : "memory"); }

template <int Left>
MF_DEVICE void wait_groups() {
  asm volatile("cp.async.wait_group %0;" : : "n"(Left) : "memory");
}

MF_DEVICE void barrier() { __syncthreads(); }

// --- programmatic dependent launch, sm_90 ----------------------------------------------------------------------------
//
// Elsewhere a launch begins when the one before it has ended, and there is nothing to wait for or to say. So it is, too,
// where the launch has not the attribute.

// Waits until the launch before has ended and all that it wrote is visible.
MF_DEVICE void grid_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}

// The launch behind may be started once all blocks of this one have come here or ended.
MF_DEVICE void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}

// --- collectives of a warp -------------------------------------------------------------------------------------------

// words[at .. at+Count-1] = Count 8x8 matrices of 16-bit elements; lane l gives row l % 8 of matrix l / 8.
template <int Count, class T>
MF_DEVICE void load_matrix(unsigned* words, int at, const T* buffer, int index) {
  const unsigned address = shared_address(buffer + index);
  unsigned* const out = words + at;
  if constexpr (Count == 1) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(out[0]) : "r"(address) : "memory");
  } else if constexpr (Count == 2) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(out[0]), "=r"(out[1])
                 : "r"(address)
                 : "memory");
  } else {
    static_assert(Count == 4, "ldmatrix loads 1, 2 or 4 matrices");
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address)
                 : "memory");
  }
}

template <int Count, class T>
MF_DEVICE void load_matrix_transposed(unsigned* words, int at, const T* buffer, int index) {
  const unsigned address = shared_address(buffer + index);
  unsigned* const out = words + at;
  if constexpr (Count == 1) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(out[0])
                 : "r"(address)
                 : "memory");
  } else if constexpr (Count == 2) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(out[0]), "=r"(out[1])
                 : "r"(address)
                 : "memory");
  } else {
    static_assert(Count == 4, "ldmatrix loads 1, 2 or 4 matrices");
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address)
                 : "memory");
  }
}

#define MF_MMA(types)                                                                                        \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." types ".f32 "                                                 \
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                      \
      : "+f"(d[d_at]), "+f"(d[d_at + 1]), "+f"(d[d_at + 2]), "+f"(d[d_at + 3])                               \
      : "r"(a[a_at]), "r"(a[a_at + 1]), "r"(a[a_at + 2]), "r"(a[a_at + 3]), "r"(b[b_at]), "r"(b[b_at + 1]))

// d[d_at .. +3] += a[a_at .. +3] x b[b_at .. +1]; fragments as in the PTX ISA, mma.m16n8k16.
template <class T>
MF_DEVICE void mma(float* d, int d_at, const unsigned* a, int a_at, const unsigned* b, int b_at);

template <>
__device__ __forceinline__ void mma<half>(float* d, int d_at, const unsigned* a, int a_at, const unsigned* b,
                                          int b_at) {
  MF_MMA("f16.f16");
}

template <>
__device__ __forceinline__ void mma<bfloat>(float* d, int d_at, const unsigned* a, int a_at, const unsigned* b,
                                            int b_at) {
  MF_MMA("bf16.bf16");
}

#undef MF_MMA

// array[at] = array[at] + (max) that of lane ^ mask.
MF_DEVICE void shuffle_add(float* array, int at, int mask) {
  array[at] += __shfl_xor_sync(0xffffffffu, array[at], mask);
}

MF_DEVICE void shuffle_max(float* array, int at, int mask) {
  array[at] = mf::max(array[at], __shfl_xor_sync(0xffffffffu, array[at], mask));
}

// --- sm_90a ----------------------------------------------------------------------------------------------------------
//
// The place of Hopper's own instructions, under `#if __CUDA_ARCH_FEAT_SM90_ALL`. They follow the rules of this file:
// addresses are (buffer, index), and every function has its twin in gpu/emulator/device.h before a kernel may call it.
//   bulk copies    tensor maps as `const __grid_constant__` parameters; copies in 1 to 5 dims into a shared buffer that
//                  complete on an mbarrier; the emulator delivers the bytes at the wait, as for copy_async
//   mbarriers      initialise, expect bytes, arrive, wait for a phase; buffers of 8-byte elements in shared memory
//   clusters       cluster barrier, rank, reads and writes of another block's shared buffer by (rank, buffer, index)
//   roles          register budgets (setmaxnreg) and named barriers for producer and consumer warps

}  // namespace mf

#endif

// --- functions of floats that both implementations compute by the ones above -------------------------------------------

namespace mf {

MF_DEVICE float square(float x) { return x * x; }
MF_DEVICE float relu(float x) { return mf::max(x, 0.0f); }
MF_DEVICE float sigmoid(float x) { return mf::div(1.0f, 1.0f + mf::exp(-x)); }
MF_DEVICE float silu(float x) { return mf::div(x, 1.0f + mf::exp(-x)); }
MF_DEVICE float gelu(float x) { return 0.5f * x * (1.0f + ::erff(x * 0.70710678118654752f)); }
MF_DEVICE float tanh(float x) { return ::tanhf(x); }
MF_DEVICE float erf(float x) { return ::erff(x); }
MF_DEVICE float log(float x) { return ::logf(x); }
MF_DEVICE float abs(float x) { return ::fabsf(x); }
MF_DEVICE float reciprocal(float x) { return mf::div(1.0f, x); }
MF_DEVICE float round_half(float x) { return to_float(from_float<half>(x)); }
MF_DEVICE float round_bfloat(float x) { return to_float(from_float<bfloat>(x)); }
// 0 where b is 0, and NaN where a is no number: so a product may come before the division or behind it.
MF_DEVICE float div_no_nan(float a, float b) { return b == 0.0f ? a * 0.0f : mf::div(a, b); }

// Masks: 1 where a comparison holds, 0 elsewhere.
MF_DEVICE float eq(float a, float b) { return a == b ? 1.0f : 0.0f; }
MF_DEVICE float lt(float a, float b) { return a < b ? 1.0f : 0.0f; }
MF_DEVICE float le(float a, float b) { return a <= b ? 1.0f : 0.0f; }
MF_DEVICE float gt(float a, float b) { return a > b ? 1.0f : 0.0f; }
MF_DEVICE float ge(float a, float b) { return a >= b ? 1.0f : 0.0f; }
MF_DEVICE float logical_not(float x) { return x == 0.0f ? 1.0f : 0.0f; }
MF_DEVICE float select(float mask, float a, float b) { return mask != 0.0f ? a : b; }

}  // namespace mf
