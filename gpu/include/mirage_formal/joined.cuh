// Joined launches: a part of the device layer that only launches of two kernels include. Its twin for the emulator is in
// gpu/emulator/device.h.
//
// The last block of a group to arrive runs what needs the results of all of them. No block waits for another one.
#pragma once

#ifndef MF_EMULATE

// A parameter that blocks write and that later blocks of the same launch read, and the counters of their groups: they are
// not __restrict__, or the compiler could load from them ahead of the ticket.
#define MF_HANDED(type) type*
#define MF_COUNTERS unsigned*

namespace mf {

// Makes what this thread wrote visible to the block that arrives last.
MF_DEVICE void publish() { __threadfence(); }

// Takes a ticket of the group's counter for the block; true, in all of its threads, if the other Size - 1 have arrived.
// The ticket releases what all threads of the block wrote before the barrier, and acquires what the others released.
template <int Size>
MF_DEVICE bool is_last(unsigned* counters, int group) {
  __syncthreads();
  unsigned ticket = 0;
  if (threadIdx.x == 0) {
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(ticket)
                 : "l"(__cvta_generic_to_global(counters + group))
                 : "memory");
  }
  return __syncthreads_or(threadIdx.x == 0 && ticket == Size - 1) != 0;
}

// Sets the counter to 0 again: all blocks of the group have arrived, and the next launch is not begun.
MF_DEVICE void reset(unsigned* counters, int group) {
  if (threadIdx.x == 0) counters[group] = 0;
}

// Shared memory may be written anew: no copy of this block is in flight, and no thread reads it any more.
MF_DEVICE void reuse_shared() {
  asm volatile("cp.async.wait_all;" : : : "memory");
  __syncthreads();
}

}  // namespace mf

#endif
