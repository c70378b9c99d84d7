// Fibers: one stack per CUDA thread, switched by hand.
//
// ucontext saves the signal mask with a system call at every switch, so x86-64 has a switch of its own; ucontext serves
// other machines and builds with sanitizers, which understand it.
#pragma once
#include <stddef.h>
#include <sys/mman.h>

#if !defined(__x86_64__) || defined(__SANITIZE_ADDRESS__)
#define MF_UCONTEXT
#include <ucontext.h>
#endif

namespace mf {
namespace emu {

static const size_t kStackBytes = 256 << 10;

#ifdef MF_UCONTEXT

struct Fiber {
  ucontext_t context;
};

static inline void switch_fiber(Fiber& from, Fiber& to) { swapcontext(&from.context, &to.context); }

static inline void make_fiber(Fiber& fiber, char* stack, void (*entry)()) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = stack;
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
}

#else

struct Fiber {
  void* stack_pointer;
};

extern "C" void mf_switch(void** from, void* to) __attribute__((visibility("hidden")));
asm(R"(
.text
.globl mf_switch
.hidden mf_switch
.type mf_switch, @function
mf_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size mf_switch, . - mf_switch
)");

static inline void switch_fiber(Fiber& from, Fiber& to) { mf_switch(&from.stack_pointer, to.stack_pointer); }

static inline void make_fiber(Fiber& fiber, char* stack, void (*entry)()) {
  // Six saved registers, the address to return to, and a word that aligns the stack as after a call.
  void** top = reinterpret_cast<void**>(stack + kStackBytes) - 8;
  for (int i = 0; i < 8; ++i) top[i] = nullptr;
  top[6] = reinterpret_cast<void*>(entry);
  fiber.stack_pointer = top;
}

#endif

// Stacks of `count` fibers; pages are touched only as far as they are used. Null if there is no memory.
static inline char* make_stacks(int count) {
  void* memory = mmap(nullptr, count * kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
}

static inline void free_stacks(char* stacks, int count) { munmap(stacks, count * kStackBytes); }

}  // namespace emu
}  // namespace mf
