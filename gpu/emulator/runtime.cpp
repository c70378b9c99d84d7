// What runtime.h declares.
#include "runtime.h"

#include <stdio.h>

#include <algorithm>
#include <random>

#include "fiber.h"

mf_dim3 threadIdx, blockIdx;

namespace mf {
namespace emu {

Machine machine;
static std::vector<Fiber> fibers;
static Fiber scheduler;

void record(Kind kind, const char* buffer, long long index, int thread, int other, int line, const char* detail) {
  Fault& fault = *machine.fault;
  fault.kind = kind;
  fault.line = line;
  fault.thread = thread;
  fault.other = other;
  fault.block[0] = blockIdx.x, fault.block[1] = blockIdx.y, fault.block[2] = blockIdx.z;
  fault.index = index;
  snprintf(fault.buffer, sizeof fault.buffer, "%s", buffer);
  snprintf(fault.detail, sizeof fault.detail, "%s", detail);
}

void fail(Kind kind, const char* buffer, long long index, int thread, int other, int line, const char* detail) {
  record(kind, buffer, index, thread, other, line, detail);
  switch_fiber(fibers[machine.current], scheduler);
  __builtin_unreachable();
}

void fail_double_write(const Param& param, long long index, unsigned writer, int line) {
  char detail[160];
  const unsigned other = writer - 1, threads = machine.launch.threads;
  snprintf(detail, sizeof detail, "thread %u of block number %u wrote this element before", other % threads,
           other / threads);
  fail(kDoubleWrite, param.name, index, machine.current, other % threads, line, detail);
}

void fail_unordered(const Param& param, long long index, unsigned writer, int line) {
  char detail[160];
  const unsigned other = writer - 1, threads = machine.launch.threads;
  snprintf(detail, sizeof detail, "block number %u wrote it, and the reading block is not the last one of its group",
           other / threads);
  fail(kUnordered, param.name, index, machine.current, other % threads, line, detail);
}

static void check_group(int group, int line) {
  if (group >= 0 && group < (int)machine.counters.size()) return;
  fail(kOutOfBounds, "counters", group, machine.current, -1, line, "there is no counter of that group");
}

void take_ticket(int group, int size, int line) {
  check_group(group, line);
  for (int i = 0; i < machine.launch.threads; ++i) {
    if (const int at = machine.threads[i].unpublished) {
      char detail[160];
      snprintf(detail, sizeof detail, "its write at line %d is not published before its block arrives", at);
      fail(kUnpublished, "", 0, i, -1, line, detail);
    }
  }
  machine.arrivals[machine.block_number] = group;
  if (++machine.counters[group] == (unsigned)size) machine.last_of = group;
}

void reset_counter(int group, int line) {
  check_group(group, line);
  machine.counters[group] = 0;
}

static void resume(int next, Fiber& from) {
  machine.current = next;
  threadIdx.x = next;
  switch_fiber(from, fibers[next]);
}

void let_run(int thread) { resume(thread, fibers[machine.current]); }

void yield() {
  const int self = machine.current, count = machine.launch.threads;
  for (int step = 1; step < count; ++step) {
    const int next = self + step < count ? self + step : self + step - count;
    if (machine.threads[next].state == kRunning) return resume(next, fibers[self]);
  }
  switch_fiber(fibers[self], scheduler);
}

[[noreturn, gnu::cold]] static void diverged(int a, int b) {
  static const char* const where[] = {"runs", "waits at a barrier", "waits at a collective",
                                      "waits at a pipeline", "has ended"};
  char detail[160];
  snprintf(detail, sizeof detail, "it %s at line %d; thread %d %s at line %d", where[machine.threads[a].state],
           machine.threads[a].line, b, where[machine.threads[b].state], machine.threads[b].line);
  fail(kDivergence, "", 0, a, b, machine.threads[a].line, detail);
}

void block_barrier(int line, int count) {
  Thread& self = machine.threads[machine.current];
  self.state = kAtBarrier;
  self.line = line;
  if (++machine.at_barrier < count) return yield();
  for (int i = 0; i < count; ++i) {
    if (machine.threads[i].line != line) diverged(machine.current, i);
  }
  for (int i = 0; i < count; ++i) machine.threads[i].state = kRunning;
  machine.at_barrier = 0;
  ++machine.epoch;
}

static int& arrived(int thread, int lanes) {
  const int warps = (machine.launch.threads + 31) / 32;
  return machine.arrived[thread / lanes * lanes / 32 + (lanes > 32 ? warps : 0)];
}

bool arrive(const Collective& operands, int line) {
  const int self = machine.current, lanes = operands.lanes, first = self / lanes * lanes;
  Thread& thread = machine.threads[self];
  thread.state = kAtCollective;
  thread.line = line;
  thread.operands = operands;
  if (++arrived(self, lanes) < lanes) {
    yield();
    return false;
  }
  for (int i = first; i < first + lanes; ++i) {
    const Thread& other = machine.threads[i];
    if (other.line != line || other.operands.kind != operands.kind) diverged(self, i);
  }
  return true;
}

void release() {
  const int lanes = machine.threads[machine.current].operands.lanes, first = machine.current / lanes * lanes;
  for (int i = first; i < first + lanes; ++i) machine.threads[i].state = kRunning;
  arrived(machine.current, lanes) = 0;
}

void start_copy(const Copy& copy) { machine.threads[machine.current].copies.push_back(copy); }

// The bytes of finished copies appear; from now on they count as written by the thread that waited.
void finish_copies(int left) {
  Thread& thread = machine.threads[machine.current];
  while (thread.first_copy < thread.copies.size()) {
    const Copy& copy = thread.copies[thread.first_copy];
    if (copy.group >= thread.closed_groups - left) break;
    memcpy(&machine.shared[copy.offset], copy.bytes, copy.size);
    Cell* const end = &machine.cells[(copy.offset + copy.size) >> machine.launch.cell];
    for (Cell* cell = &machine.cells[copy.offset >> machine.launch.cell]; cell < end; ++cell) {
      cell->state = kHolds;
      cell->writer = machine.current;
      cell->write_epoch = machine.epoch;
    }
    ++thread.first_copy;
  }
  if (thread.first_copy == thread.copies.size()) {
    thread.copies.clear();
    thread.first_copy = 0;
  }
}

static void fiber_entry() {
  machine.launch.body();
  machine.threads[machine.current].state = kDone;
  yield();
  __builtin_unreachable();
}

static void start_block(char* stacks) {
  memset(machine.shared.data(), 0xff, machine.shared.size());
  memset(machine.cells.data(), 0, machine.cells.size() * sizeof(Cell));
  machine.epoch = 1;
  machine.at_barrier = 0;
  machine.last_of = -1;
  machine.pipelines.clear();
  machine.tiles.clear();
  for (int& count : machine.arrived) count = 0;
  for (int i = 0; i < machine.launch.threads; ++i) {
    Thread& thread = machine.threads[i];
    thread.state = kRunning;
    thread.line = 0;
    thread.copies.clear();
    thread.first_copy = 0;
    thread.closed_groups = 0;
    thread.unpublished = 0;
    thread.open.clear();
    make_fiber(fibers[i], stacks + i * kStackBytes, fiber_entry);
  }
}

// Some threads wait for others that will not come.
static void report_divergence() {
  if (find_deadlock()) return;
  int waiting = -1, other = -1;
  for (int i = 0; i < machine.launch.threads && waiting < 0; ++i) {
    if (machine.threads[i].state != kDone) waiting = i;
  }
  // A collective waits for its own warp, a barrier for everyone.
  const Thread& thread = machine.threads[waiting];
  const bool collective = thread.state == kAtCollective;
  const int lanes = thread.operands.lanes, first = collective ? waiting / lanes * lanes : 0;
  const int last = collective && first + lanes < machine.launch.threads ? first + lanes : machine.launch.threads;
  for (int i = first; i < last && other < 0; ++i) {
    if (machine.threads[i].state != thread.state) other = i;
  }
  char detail[160];
  if (other < 0) {
    snprintf(detail, sizeof detail, "it waits at a collective of %d threads, which are not all there", lanes);
  } else {
    const Thread& absent = machine.threads[other];
    snprintf(detail, sizeof detail, "it waits at line %d; thread %d %s (line %d)", thread.line, other,
             absent.state == kDone ? "has ended" : "waits elsewhere", absent.line);
  }
  record(kDivergence, "", 0, waiting, other, thread.line, detail);
}

static void run_block(char* stacks) {
  start_block(stacks);
  resume(0, scheduler);
  if (machine.fault->kind != kNone) return;
  for (const Thread& thread : machine.threads) {
    if (thread.state != kDone) return report_divergence();
  }
  check_items();
}

// The numbers of the blocks in the order in which they run: any order is right for a joined launch.
static std::vector<unsigned> block_order(unsigned seed) {
  const int* grid = machine.launch.grid;
  std::vector<unsigned> order((size_t)grid[0] * grid[1] * grid[2]);
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  if (machine.launch.counters > 0) std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  return order;
}

static void run_grid(char* stacks, unsigned seed) {
  const unsigned x = machine.launch.grid[0], y = machine.launch.grid[1];
  for (const unsigned number : block_order(seed)) {
    machine.block_number = number;
    blockIdx = {number % x, number / x % y, number / x / y};
    run_block(stacks);
    if (machine.fault->kind != kNone) return;
  }
  blockIdx = {0, 0, 0};
  for (int i = 0; i < machine.launch.param_count; ++i) {
    const Param& param = machine.launch.params[i];
    for (long long k = 0; param.written && k < param.elements; ++k) {
      if ((*param.writers)[k] == 0) {
        return record(kUnwritten, param.name, k, -1, -1, 0, "no thread wrote this element");
      }
    }
  }
  for (size_t i = 0; i < machine.counters.size(); ++i) {
    if (machine.counters[i] != 0) return record(kCounter, "counters", i, -1, -1, 0, "it is not 0 behind the launch");
  }
}

int run(const Launch& launch, void* const* data, Fault* fault, unsigned seed) {
  memset(fault, 0, sizeof *fault);
  machine.launch = launch;
  machine.fault = fault;
  machine.seed = seed;
  machine.threads.assign(launch.threads, Thread());
  fibers.assign(launch.threads, Fiber());
  machine.arrived.assign(2 * ((launch.threads + 31) / 32), 0);
  machine.shared.assign(launch.shared_bytes, 0);
  machine.cells.assign((launch.shared_bytes >> launch.cell) + 1, Cell());
  machine.counters.assign(launch.counters, 0);
  machine.arrivals.assign((size_t)launch.grid[0] * launch.grid[1] * launch.grid[2], -1);
  std::vector<std::vector<unsigned>> writers(launch.param_count);
  for (int i = 0; i < launch.param_count; ++i) {
    Param& param = launch.params[i];
    param.data = static_cast<unsigned char*>(data[i]);
    param.writers = &writers[i];
    if (param.written) writers[i].assign(param.elements, 0);
  }
  char* stacks = make_stacks(launch.threads);
  if (stacks == nullptr) {
    record(kMemory, "", 0, -1, -1, 0, "no memory for the threads' stacks");
    return fault->kind;
  }
  run_grid(stacks, seed);
  free_stacks(stacks, launch.threads);
  return fault->kind;
}

}  // namespace emu
}  // namespace mf

#include "pipeline.cpp"
