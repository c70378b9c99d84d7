// Producers and pipelines (sm_90a): a part of the device layer that only kernels with a producer include. Its twin for
// the emulator is gpu/emulator/pipeline.h.
//
// One thread of a warpgroup of its own, the producer, copies tiles by the tensor memory accelerator. The threads before
// it, the consumers, run the rest of the kernel. Item i of a pipeline is in slot i % slots. A slot has two mbarriers:
// `full` completes when the bytes of an item have arrived, `empty` when each warp of consumers has released it.
#pragma once

#ifdef MF_EMULATE
#include "pipeline.h"
#else
#ifndef __CUDA_ARCH_FEAT_SM90_ALL
#error "this kernel has a producer, which needs sm_90a"
#endif

// A parameter: the view of a tensor as a matrix, as the driver encodes it.
#define MF_TENSOR_MAP const __grid_constant__ mf::TensorMap
// A pipeline: slots, bytes of an item, and warps of consumers.
#define MF_PIPELINE(name, slots, bytes, warps)                                          \
  __shared__ __align__(8) unsigned long long mf_barriers_of_##name[2 * (slots)];        \
  const mf::Pipeline<slots, bytes, warps> name { mf::shared_address(mf_barriers_of_##name) }
// The end of the producer's threads; what stands behind is for the first `count` threads.
#define MF_CONSUMERS(count)         \
  if (threadIdx.x >= (count)) return; \
  mf::take_registers<count>()

namespace mf {

struct __align__(64) TensorMap {
  unsigned long long words[16];
};

template <int Slots, int Bytes, int Warps>
struct Pipeline {
  unsigned barriers;
  __device__ __forceinline__ unsigned full(int item) const { return barriers + 8 * (item % Slots); }
  __device__ __forceinline__ unsigned empty(int item) const { return full(item) + 8 * Slots; }
};

MF_DEVICE void start_barrier(unsigned barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(barrier), "r"(count) : "memory");
}

// Waits until the phase of this parity is complete: what was written before its arrivals is visible then.
MF_DEVICE void wait_phase(unsigned barrier, int parity) {
  asm volatile(
      "{.reg .pred done;\n"
      "mf_wait_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra mf_wait_%=;}"
      :
      : "r"(barrier), "r"(parity)
      : "memory");
}

template <int Slots, int Bytes, int Warps>
MF_DEVICE void start_pipeline(const Pipeline<Slots, Bytes, Warps>& pipeline) {
#pragma unroll
  for (int slot = 0; slot < Slots; ++slot) {
    start_barrier(pipeline.full(slot), 1);
    start_barrier(pipeline.empty(slot), Warps);
  }
}

// Initialises the barriers of all pipelines; all threads of the block meet.
template <class... Pipelines>
MF_DEVICE void start_pipelines(const Pipelines&... pipelines) {
  if (threadIdx.x == 0) {
    (start_pipeline(pipelines), ...);
    asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
  }
  __syncthreads();
}

// Of 384 threads, to each of which ptxas allots 168 registers, the 128 of the producer keep 40, and the 256 consumers get
// 232. ptxas ignores both where it does not know what it has allotted, in a kernel whose blocks are not alone.
template <int Consumers>
MF_DEVICE void take_registers() {
  if constexpr (Consumers == 256) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
}

// Whether this is the thread that copies, the first one behind the consumers. Its warpgroup gives registers back.
template <int Consumers>
MF_DEVICE bool is_producer() {
  if (threadIdx.x < Consumers) return false;
  if constexpr (Consumers == 256) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
  return threadIdx.x == Consumers;
}

// The consumers meet; in the fenced one, what they have stored is visible to products of warpgroups behind it.
template <int Consumers>
MF_DEVICE void consumer_barrier() {
  asm volatile("bar.sync 1, %0;" : : "n"(Consumers) : "memory");
}

template <int Consumers>
MF_DEVICE void fenced_consumer_barrier() {
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
  consumer_barrier<Consumers>();
}

// The producer waits until the slot of an item is free, and announces the bytes of its copies.
template <int Slots, int Bytes, int Warps>
MF_DEVICE void acquire(const Pipeline<Slots, Bytes, Warps>& pipeline, int item) {
  if (item >= Slots) wait_phase(pipeline.empty(item), (item / Slots - 1) & 1);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(pipeline.full(item)), "r"(Bytes)
               : "memory");
}

// Begins the copy of Rows rows of 64 elements, part of an item, from a parameter in rows of Stride elements. Its first
// element is param[source]; it lies from 1,024 bytes `at` on, in the order of a panel of wgmma.cuh.
template <int Rows, int Stride, int Slots, int Bytes, int Warps, class T>
MF_DEVICE void copy_tile(const Pipeline<Slots, Bytes, Warps>& pipeline, int item, T* buffer, int at,
                         const TensorMap& map, const T* /* param: the map has its address */, int source) {
  static_assert(sizeof(T) == 2 && Rows % 8 == 0 && Rows <= 256 && Stride % 8 == 0, "a tile is of whole units");
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
      :
      : "r"(shared_address(buffer) + at * 1024), "l"(&map), "r"(source % Stride), "r"(source / Stride),
        "r"(pipeline.full(item))
      : "memory");
}

// A consumer waits until all bytes of an item have arrived.
template <int Slots, int Bytes, int Warps>
MF_DEVICE void await(const Pipeline<Slots, Bytes, Warps>& pipeline, int item) {
  wait_phase(pipeline.full(item), (item / Slots) & 1);
}

// A warp of consumers gives the slot of an item back: all its lanes have read what they need.
template <int Slots, int Bytes, int Warps>
MF_DEVICE void release(const Pipeline<Slots, Bytes, Warps>& pipeline, int item) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(pipeline.empty(item)) : "memory");
  }
}

}  // namespace mf

#endif
