// Products of warpgroups (wgmma, sm_90a): a part of the device layer that only kernels with such products include. Its
// twin for the emulator is in gpu/emulator/device.h.
//
// A matrix in shared memory consists of panels of 64 columns of 16-bit elements, 128 bytes a row, whose 16-byte chunks
// are permuted: chunk c of row r lies at c ^ r % 8 (PTX ISA, matrix descriptor, 128-byte swizzle). A panel begins at a
// multiple of 1,024 bytes, which is the unit of positions and panels here.
#pragma once

#ifndef MF_EMULATE
#ifndef __CUDA_ARCH_FEAT_SM90_ALL
#error "this kernel has products of warpgroups, which need sm_90a"
#endif

namespace mf {

// All threads of the block meet; what they have stored in shared memory is visible to products of warpgroups behind it.
MF_DEVICE void fenced_barrier() {
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
  __syncthreads();
}

// The descriptor of a matrix that begins at an address, with `panel` units from a panel to the next.
MF_DEVICE unsigned long long matrix_descriptor(unsigned address, int panel) {
  const unsigned long long leading = panel * (1024 >> 4), stride = 1024 >> 4, swizzle_of_128_bytes = 1;
  return (address >> 4 & 0x3fff) | leading << 16 | stride << 32 | swizzle_of_128_bytes << 62;
}

// The descriptor of step k of 16 inner positions, which run along the columns of a matrix, or across them.
template <int Panel, bool Across>
MF_DEVICE unsigned long long step_descriptor(unsigned address, int k) {
  return matrix_descriptor(Across ? address + k * 2048 : address + k / 4 * Panel * 1024 + k % 4 * 32, Panel);
}

// wgmma.mma_async m64nNk16: d += a x b, or d = a x b where `add` is 0; a is in shared memory or in registers.
template <class T, int Columns>
struct WarpgroupStep;

#define MF_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MF_F8(i) MF_F4(i), MF_F4(i + 4)
#define MF_F16(i) MF_F8(i), MF_F8(i + 8)
#define MF_F32(i) MF_F16(i), MF_F16(i + 16)
#define MF_F64(i) MF_F32(i), MF_F32(i + 32)
#define MF_F128(i) MF_F64(i), MF_F64(i + 64)
#define MF_D8 "%0, %1, %2, %3"
#define MF_D16 MF_D8 ", %4, %5, %6, %7"
#define MF_D32 MF_D16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define MF_D64 MF_D32 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MF_D128 MF_D64                                                                                                \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"                                  \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MF_D256 MF_D128                                                                                               \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"                                  \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"                                  \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"                      \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

#define MF_STEP(T, type, columns, registers, o0, o1, o2, o3, o4, o5, o6)                                              \
  template <>                                                                                                         \
  struct WarpgroupStep<T, columns> {                                                                                  \
    template <bool AAcross, bool BAcross>                                                                             \
    static __device__ __forceinline__ void shared(float* d, unsigned long long a, unsigned long long b, int add) {    \
      asm volatile("{.reg .pred p; setp.ne.b32 p, %" #o2 ", 0;\n"                                                     \
                   "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type                              \
                   " {" MF_D##columns "}, %" #o0 ", %" #o1 ", p, 1, 1, %" #o3 ", %" #o4 ";}"                          \
                   : MF_F##registers(0)                                                                               \
                   : "l"(a), "l"(b), "r"(add), "n"(AAcross), "n"(BAcross)                                             \
                   : "memory");                                                                                       \
    }                                                                                                                 \
    template <bool BAcross>                                                                                           \
    static __device__ __forceinline__ void fragments(float* d, const unsigned* a, unsigned long long b, int add) {    \
      asm volatile("{.reg .pred p; setp.ne.b32 p, %" #o5 ", 0;\n"                                                     \
                   "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type                              \
                   " {" MF_D##columns "}, {%" #o0 ", %" #o1 ", %" #o2 ", %" #o3 "}, %" #o4 ", p, 1, 1, %" #o6 ";}"    \
                   : MF_F##registers(0)                                                                               \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(BAcross)                       \
                   : "memory");                                                                                       \
    }                                                                                                                 \
  }
#define MF_STEPS(columns, registers, o0, o1, o2, o3, o4, o5, o6)                                                      \
  MF_STEP(half, "f16", columns, registers, o0, o1, o2, o3, o4, o5, o6);                                               \
  MF_STEP(bfloat, "bf16", columns, registers, o0, o1, o2, o3, o4, o5, o6)

MF_STEPS(8, 4, 4, 5, 6, 7, 8, 9, 10);
MF_STEPS(16, 8, 8, 9, 10, 11, 12, 13, 14);
MF_STEPS(32, 16, 16, 17, 18, 19, 20, 21, 22);
MF_STEPS(64, 32, 32, 33, 34, 35, 36, 37, 38);
MF_STEPS(128, 64, 64, 65, 66, 67, 68, 69, 70);
MF_STEPS(256, 128, 128, 129, 130, 131, 132, 133, 134);

#undef MF_STEPS
#undef MF_STEP

// Holds accumulators in registers: what was computed of them stands before this, what will be computed of them behind.
template <int Count>
MF_DEVICE void pin(float* d) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(d[i]) : : "memory");
}

MF_DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" : : : "memory"); }

MF_DEVICE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory"); }

// All products of the warpgroup are complete, and so are those of Columns columns in d[d_at ..].
template <int Columns>
MF_DEVICE void warpgroup_wait(float* d, int d_at) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" : : : "memory");
  pin<Columns / 2>(d + d_at);
}

// d[d_at ..] += a x b (without Add: = a x b) of 64 x Depth and Depth x Columns elements, complete at its end, or at the
// wait if it is Deferred. b lies in shared memory from b_at on, its panels BPanel apart, with the inner dim along its
// columns or across them. So does a.
template <int Columns, int Depth, int APanel, int AAcross, int BPanel, int BAcross, int Add, int Deferred,
          class T>
MF_DEVICE void warpgroup_mma(float* d, int d_at, const T* a, int a_at, const T* b, int b_at) {
  const unsigned left = shared_address(a) + a_at * 1024, right = shared_address(b) + b_at * 1024;
  pin<Columns / 2>(d + d_at);
  begin_products();
#pragma unroll
  for (int k = 0; k < Depth / 16; ++k) {
    WarpgroupStep<T, Columns>::template shared<AAcross, BAcross>(
        d + d_at, step_descriptor<APanel, AAcross>(left, k), step_descriptor<BPanel, BAcross>(right, k), Add || k > 0);
  }
  commit_products();
  if constexpr (!Deferred) warpgroup_wait<Columns>(d, d_at);
}

// The same with a in registers: a[a_at + 4 k .. +3] are its fragments of step k, as in an mma.m16n8k16 of each warp.
template <int Columns, int Depth, int APanel, int AAcross, int BPanel, int BAcross, int Add, int Deferred,
          class T>
MF_DEVICE void warpgroup_mma(float* d, int d_at, const unsigned* a, int a_at, const T* b, int b_at) {
  const unsigned right = shared_address(b) + b_at * 1024;
  pin<Columns / 2>(d + d_at);
  begin_products();
#pragma unroll
  for (int k = 0; k < Depth / 16; ++k) {
    WarpgroupStep<T, Columns>::template fragments<BAcross>(d + d_at, a + a_at + 4 * k,
                                                           step_descriptor<BPanel, BAcross>(right, k), Add || k > 0);
  }
  commit_products();
  if constexpr (!Deferred) warpgroup_wait<Columns>(d, d_at);
}

}  // namespace mf

#endif
