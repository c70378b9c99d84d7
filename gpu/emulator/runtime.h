// The emulator's launch: runs a kernel's blocks one after another, its threads as fibers, and stops at the first fault.
//
// Threads switch only where CUDA's would wait: at barriers and at collectives of a warp. The last thread to arrive does
// the work and goes on, so a block of n threads costs n switches for each of them. What lies in runtime.cpp is compiled
// once, not with every kernel.
#pragma once
#include <string.h>

#include <vector>

#include "half.h"

struct mf_dim3 {
  unsigned x, y, z;
};
extern mf_dim3 threadIdx, blockIdx;

namespace mf {
namespace emu {

// The order is that of mirage_formal/device/emulate.py, FaultKind.
enum Kind : int {
  kNone,
  kOutOfBounds,
  kMisaligned,
  kUninitialised,
  kPending,
  kStale,
  kRace,
  kDivergence,
  kDoubleWrite,
  kUnwritten,
  kUnordered,
  kUnpublished,
  kCounter,
  kMemory,
};

// What went wrong first; `thread` is -1 where no single thread is at fault, `other` -1 where there is no second one.
struct Fault {
  int kind;
  int line;
  int thread;
  int other;
  int block[3];
  int pad;
  long long index;
  // Bytes that were read from parameters, by all blocks.
  long long loaded;
  char buffer[64];
  char detail[160];
};

struct Param {
  const char* name;
  int bytes;
  long long elements;
  bool written;
  int align;
  unsigned char* data;
  std::vector<unsigned>* writers;  // of every element: 1 + the launch's thread that wrote it
};

struct Launch {
  void (*body)();
  Param* params;
  int param_count;
  int grid[3];
  int threads;
  int shared_bytes;
  int cell;  // a cell is of 1 << cell bytes: of one where a buffer holds masks, else of two
  int counters;  // groups of a joined launch, whose blocks run in random order; 0 elsewhere
};

// One asynchronous copy in flight: where its bytes will appear.
struct Copy {
  int offset;
  int group;
  int size;
  unsigned char bytes[16];
};

enum State : char { kRunning, kAtBarrier, kAtCollective, kDone };

// Operands of a collective that a lane has arrived at; which of them are used depends on its kind.
enum CollectiveKind : char { kShuffleAdd, kShuffleMax, kLoadMatrix, kMma, kWarpgroupMma };
struct Collective {
  CollectiveKind kind;
  int mask;
  float* floats;
  unsigned* a;
  unsigned* b;
  int index;
  const void* buffer;
  const float* left = nullptr;  // operands of a product of float32, in place of a and b
  const float* right = nullptr;
  int lanes = 32;  // threads that meet: a warp, or a warpgroup of 128
};

struct Thread {
  State state;
  int line;
  Collective operands;
  std::vector<Copy> copies;
  size_t first_copy;
  int closed_groups;
  int unpublished;  // line of its last write to device memory that is not published; 0 if there is none
};

// Shadow of one or two bytes of shared memory, see Launch. Epochs count barriers of the block.
struct Cell {
  unsigned write_epoch, read_epoch;
  unsigned short writer, reader, owner;
  unsigned char state;
};
enum CellState : unsigned char { kEmpty, kHolds, kInFlight };
static const int kMany = 0xffff;  // several readers, or a whole warp at once

struct Machine {
  Launch launch;
  Fault* fault;
  std::vector<Thread> threads;
  std::vector<int> arrived;  // of each warp, at its collective; behind them of each warp's warpgroup
  int current;
  int at_barrier;
  unsigned epoch;
  unsigned block_number;
  std::vector<unsigned char> shared;
  std::vector<Cell> cells;
  std::vector<unsigned> counters;  // of a joined launch, one for each group
  std::vector<int> arrivals;       // the group at whose counter each block has arrived; -1 before
  int last_of;                     // the group of which this block is the last one to arrive; -1 if of none
};
extern Machine machine;

// Ends the launch from inside a thread; its fiber is never resumed.
[[noreturn, gnu::cold]] void fail(Kind kind, const char* buffer, long long index, int thread, int other, int line,
                                  const char* detail);
[[noreturn, gnu::cold]] void fail_double_write(const Param& param, long long index, unsigned writer, int line);

[[noreturn, gnu::cold]] void fail_unordered(const Param& param, long long index, unsigned writer, int line);

// The block arrives at the counter of a group of `size` blocks; what its threads wrote is published before.
void take_ticket(int group, int size, int line);
void reset_counter(int group, int line);

// All threads of the block meet.
void block_barrier(int line);

// Arrives at a collective; true for the last lane, which performs it with the operands of all and calls `release`.
bool arrive(const Collective& operands, int line);
void release();

// Asynchronous copies of this thread: one more in flight; those of all but the newest `left` groups arrive.
void start_copy(const Copy& copy);
void finish_copies(int left);

// Runs the kernel on `data`, one pointer for each parameter in order; the kind of the fault, or 0. `seed` decides about
// the order of the blocks of a joined launch.
int run(const Launch& launch, void* const* data, Fault* fault, unsigned seed);

}  // namespace emu
}  // namespace mf
