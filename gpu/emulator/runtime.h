// The emulator's launch: runs a kernel's blocks one after another, its threads as fibers, and stops at the first fault.
//
// Threads switch only where CUDA's would wait: at barriers, at collectives of a warp, and at pipelines. The last thread
// to arrive does the work and goes on, so a block of n threads costs n switches for each of them. What lies in
// runtime.cpp and pipeline.cpp is compiled once, not with every kernel.
#pragma once
#include <string.h>

#include <vector>

#include "half.h"

namespace mf {
// A pipeline of a kernel: its number, and the line of its declaration.
struct Pipeline {
  int number, line;
};
}  // namespace mf

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
  kDeadlock,
  kItemOrder,
  kItemBytes,
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

enum State : char { kRunning, kAtBarrier, kAtCollective, kAtPipeline, kDone };

// Operands of a collective that a lane has arrived at; which of them are used depends on its kind.
enum CollectiveKind : char { kShuffleAdd, kShuffleMax, kLoadMatrix, kMma, kWarpgroupMma, kRelease };
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
  int pipeline, item;  // what it waits for at a pipeline
  std::vector<unsigned> open;  // items that its products read which are not complete, as in Cell
};

// A ring of slots, with the items of the producer and of each consumer.
struct ItemRing {
  const char* name;
  int slots, bytes, consumers;
  bool started;
  std::vector<int> arrived;            // of each acquired item: bytes that have arrived
  int issued;                          // bytes of the copies of the last one
  std::vector<int> awaited, released;  // of each consumer: items
};

// One copy of a tile in flight, to bytes of shared memory from `offset` on.
static const int kTileColumns = 64;
struct TileCopy {
  int pipeline, item;
  const char* buffer;
  int index, owner, offset, rows, stride;
  const unsigned char* source;
};

// Shadow of one or two bytes of shared memory, see Launch. Epochs count barriers of the block.
struct Cell {
  unsigned write_epoch, read_epoch;
  unsigned short writer, reader, owner;
  unsigned char state;
  unsigned item;  // whose copy wrote it last: 1 + its pipeline, and the item in 24 bits; 0 if no copy of a tile did
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
  std::vector<ItemRing> pipelines;
  std::vector<TileCopy> tiles;     // copies of tiles whose bytes have not arrived
  std::vector<unsigned> read;      // items that the product at hand reads
  unsigned seed;                   // decides who runs first, and when bytes arrive
};
extern Machine machine;

// Notes the first fault; `fail` also ends the launch from inside a thread, whose fiber is never resumed.
void record(Kind kind, const char* buffer, long long index, int thread, int other, int line, const char* detail);
[[noreturn, gnu::cold]] void fail(Kind kind, const char* buffer, long long index, int thread, int other, int line,
                                  const char* detail);
[[noreturn, gnu::cold]] void fail_double_write(const Param& param, long long index, unsigned writer, int line);

[[noreturn, gnu::cold]] void fail_unordered(const Param& param, long long index, unsigned writer, int line);

// The block arrives at the counter of a group of `size` blocks; what its threads wrote is published before.
void take_ticket(int group, int size, int line);
void reset_counter(int group, int line);

// All threads of the block meet, or the first `count`.
void block_barrier(int line, int count);
static inline void block_barrier(int line) { block_barrier(line, machine.launch.threads); }

// Runs another thread until this one may go on; the scheduler takes over when none can run.
void yield();
// Runs a thread that may go on, while this one may, too.
void let_run(int thread);

// Arrives at a collective; true for the last lane, which performs it with the operands of all and calls `release`.
bool arrive(const Collective& operands, int line);
void release();

// Asynchronous copies of this thread: one more in flight; those of all but the newest `left` groups arrive.
void start_copy(const Copy& copy);
void finish_copies(int left);

// Pipelines: see pipeline.h, and include/mirage_formal/pipeline.cuh for what each of them is on a GPU.
Pipeline find_pipeline(const char* name, int slots, int bytes, int warps, int line);
void start_pipelines(const Pipeline* const* pipelines, int count);
void expect_consumers(int count, int line);
bool end_producer(int consumers, int line);
void acquire_item(int pipeline, int item, int line);
void issue_copy(const TileCopy& copy, int line);
void await_item(int pipeline, int item, int line);
void release_item(int pipeline, int item, int line);
// Fails if a thread reads what a copy of a tile has written but does not hold the item, or writes there before it has
// awaited it.
[[gnu::cold]] void check_item(const Cell& cell, const char* buffer, int index, int thread, bool read, int line);
// The end of a product of the current thread's warpgroup; what a deferred one has read it reads until the wait.
void end_product(bool deferred);
// At the end of a block: whether threads wait at pipelines for ever, and whether all items were awaited.
bool find_deadlock();
void check_items();

// Runs the kernel on `data`, one pointer for each parameter in order; the kind of the fault, or 0. `seed` decides about
// the order of the blocks of a joined launch.
int run(const Launch& launch, void* const* data, Fault* fault, unsigned seed);

}  // namespace emu
}  // namespace mf
