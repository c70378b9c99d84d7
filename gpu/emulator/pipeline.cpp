// What runtime.h declares of pipelines; a part of runtime.cpp.
#include "runtime.h"

namespace mf {
namespace emu {

static unsigned tag(int pipeline, int item) { return (unsigned)(pipeline + 1) << 24 | (unsigned)item; }
static const ItemRing& ring_of(const Cell& cell) { return machine.pipelines[(cell.item >> 24) - 1]; }
static int item_of(const Cell& cell) { return cell.item & 0xffffff; }

Pipeline find_pipeline(const char* name, int slots, int bytes, int warps, int line) {
  for (size_t i = 0; i < machine.pipelines.size(); ++i) {
    if (strcmp(machine.pipelines[i].name, name) == 0) return {(int)i, line};
  }
  const int consumers = 32 * warps;
  std::vector<int> none(consumers, 0);
  machine.pipelines.push_back({name, slots, bytes, consumers, false, {}, bytes, none, none});
  return {(int)machine.pipelines.size() - 1, line};
}

void expect_consumers(int count, int line) {
  bool same = machine.launch.threads == count + 128;
  for (const ItemRing& ring : machine.pipelines) same = same && ring.consumers == count;
  if (!same) fail(kDivergence, "", count, machine.current, -1, line, "the block has another number of consumers");
}

// Whether the producer is the first to go on is by chance; its copies are right in any order.
void start_pipelines(const Pipeline* const* pipelines, int count) {
  for (int i = 0; i < count; ++i) machine.pipelines[pipelines[i]->number].started = true;
  const bool last = machine.at_barrier == machine.launch.threads - 1;
  block_barrier(pipelines[0]->line);
  if (last && machine.seed % 2 == 1) let_run(machine.launch.threads - 128);
}

// Runs other threads until one of them calls `wake`.
static void wait(int pipeline, int item, int line) {
  Thread& self = machine.threads[machine.current];
  self.state = kAtPipeline;
  self.line = line;
  self.pipeline = pipeline;
  self.item = item;
  yield();
}

static void wake(int pipeline) {
  for (Thread& thread : machine.threads) {
    if (thread.state == kAtPipeline && thread.pipeline == pipeline) thread.state = kRunning;
  }
}

[[gnu::cold]] static void fail_order(const ItemRing& ring, int item, int next, const char* what, int line) {
  char detail[160];
  const char* const text = next < 0 ? "expected an item to be acquired first" : "expected item %d to be %s";
  snprintf(detail, sizeof detail, text, next, what);
  fail(kItemOrder, ring.name, item, machine.current, -1, line, detail);
}

// The ring, if this is the thread and the item whose turn it is to be `what`.
static ItemRing& expect_next(int pipeline, int item, int next, const char* what, bool producer, int line) {
  ItemRing& ring = machine.pipelines[pipeline];
  const int self = machine.current;
  if (!ring.started) fail(kUninitialised, ring.name, item, self, -1, line, "its barriers are not initialised");
  if (producer ? self != ring.consumers : self >= ring.consumers) {
    fail(kDivergence, ring.name, item, self, -1, line, "a producer acquires and copies, consumers await and release");
  }
  if (item != next || item >= 1 << 24) fail_order(ring, item, next, what, line);
  return ring;
}

static void expect_bytes(const ItemRing& ring, int line) {
  if (ring.issued == ring.bytes) return;
  char detail[160];
  snprintf(detail, sizeof detail, "its copies have %d bytes, and %d were announced", ring.issued, ring.bytes);
  fail(kItemBytes, ring.name, (int)ring.arrived.size() - 1, machine.current, -1, line, detail);
}

// A consumer that has not released an item; -1 if all have.
static int holder(const ItemRing& ring, int item) {
  for (int i = 0; i < ring.consumers; ++i) {
    if (ring.released[i] <= item) return i;
  }
  return -1;
}

void acquire_item(int pipeline, int item, int line) {
  const int next = machine.pipelines[pipeline].arrived.size();
  ItemRing& ring = expect_next(pipeline, item, next, "acquired next", true, line);
  expect_bytes(ring, line);
  while (item >= ring.slots && holder(ring, item - ring.slots) >= 0) wait(pipeline, item, line);
  ring.arrived.push_back(0);
  ring.issued = 0;
}

bool end_producer(int consumers, int line) {
  if (machine.current < consumers) return false;
  for (const ItemRing& ring : machine.pipelines) {
    if (machine.current == consumers) expect_bytes(ring, line);
  }
  return true;
}

// The position of byte `at` of a tile in shared memory: 16-byte chunks of a row of 128 are permuted.
static int swizzled(int at) { return at ^ 16 * (at / 128 % 8); }

// The bytes of a copy appear, as written by the producer.
static void finish_copy(const TileCopy& copy) {
  const int bytes = copy.rows * kTileColumns * 2;
  for (int at = 0; at < bytes; at += 2) {
    const size_t from = (size_t)(at / 128) * copy.stride * 2 + at % 128;
    memcpy(&machine.shared[copy.offset + swizzled(at)], copy.source + from, 2);
  }
  Cell* const end = &machine.cells[(copy.offset + bytes) >> machine.launch.cell];
  for (Cell* cell = &machine.cells[copy.offset >> machine.launch.cell]; cell < end; ++cell) cell->state = kHolds;
  ItemRing& ring = machine.pipelines[copy.pipeline];
  ring.arrived[copy.item] += bytes;
  if (ring.arrived[copy.item] == ring.bytes) wake(copy.pipeline);
}

static void finish_copies_of(int pipeline, int item) {
  std::vector<TileCopy> left, done;
  for (const TileCopy& copy : machine.tiles) {
    (copy.pipeline == pipeline && copy.item == item ? done : left).push_back(copy);
  }
  machine.tiles = left;
  for (const TileCopy& copy : done) finish_copy(copy);
}

// What was here before may be overwritten if the producer knows that all consumers have released it.
static void check_free(const Cell& cell, const TileCopy& copy, int index, int line) {
  const int producer = machine.current;
  if (cell.item == 0) {
    if (cell.state == kEmpty) return;
    fail(kRace, copy.buffer, index, producer, cell.writer, line,
         "copied to what the other thread has written; nothing puts the copy behind it");
  }
  if (cell.item == tag(copy.pipeline, copy.item)) {
    fail(kRace, copy.buffer, index, producer, -1, line, "another copy of the same item is to these bytes");
  }
  const ItemRing& ring = ring_of(cell);
  const int item = item_of(cell), acquired = (int)ring.arrived.size() - 1;
  if (item <= acquired - ring.slots) return;
  char detail[160];
  const char* const text = "these bytes hold item %d of %s, which the producer does not know to be released";
  snprintf(detail, sizeof detail, text, item, ring.name);
  fail(kRace, copy.buffer, index, producer, holder(ring, item), line, detail);
}

// A consumer that waits for the item gets the bytes at once; else they arrive at once or not before a consumer awaits
// the item, by chance.
void issue_copy(const TileCopy& copy, int line) {
  const int next = (int)machine.pipelines[copy.pipeline].arrived.size() - 1, bytes = copy.rows * kTileColumns * 2;
  ItemRing& ring = expect_next(copy.pipeline, copy.item, next, "copied until the next one is acquired", true, line);
  ring.issued += bytes;
  if (ring.issued > ring.bytes) expect_bytes(ring, line);
  const int first = copy.offset >> machine.launch.cell, count = bytes >> machine.launch.cell;
  for (int i = 0; i < count; ++i) {
    Cell& cell = machine.cells[first + i];
    check_free(cell, copy, copy.index + (i << machine.launch.cell >> 1), line);
    cell = Cell();
    cell.writer = machine.current;
    cell.owner = copy.owner;
    cell.state = kInFlight;
    cell.item = tag(copy.pipeline, copy.item);
  }
  memset(&machine.shared[copy.offset], 0xff, bytes);
  machine.tiles.push_back(copy);
  bool at_once = (machine.seed / 2 + copy.item) % 2 == 1;
  for (const Thread& thread : machine.threads) {
    at_once |= thread.state == kAtPipeline && &thread - &machine.threads[0] < ring.consumers &&
               thread.pipeline == copy.pipeline && thread.item == copy.item;
  }
  if (at_once) finish_copies_of(copy.pipeline, copy.item);
}

void await_item(int pipeline, int item, int line) {
  const int self = machine.current, consumers = machine.pipelines[pipeline].consumers;
  const int next = self < consumers ? machine.pipelines[pipeline].awaited[self] : 0;
  ItemRing& ring = expect_next(pipeline, item, next, "awaited next", false, line);
  finish_copies_of(pipeline, item);
  while (item >= (int)ring.arrived.size() || ring.arrived[item] < ring.bytes) wait(pipeline, item, line);
  ring.awaited[self] = item + 1;
}

void release_item(int pipeline, int item, int line) {
  const int self = machine.current, consumers = machine.pipelines[pipeline].consumers;
  const int next = self < consumers ? machine.pipelines[pipeline].released[self] : 0;
  ItemRing& ring = expect_next(pipeline, item, next, "released next", false, line);
  if (ring.awaited[self] <= item) fail_order(ring, item, item, "awaited before", line);
  for (const unsigned open : machine.threads[self].open) {
    if (open == tag(pipeline, item)) {
      fail(kRace, ring.name, item, self, -1, line, "released before the product that reads it is complete");
    }
  }
  if (!arrive({kRelease, pipeline, nullptr, nullptr, nullptr, item, nullptr}, line)) return;
  const int first = self / 32 * 32;
  for (int i = first; i < first + 32; ++i) {
    const Collective& other = machine.threads[i].operands;
    if (other.mask != pipeline || other.index != item) {
      fail(kDivergence, ring.name, item, self, i, line, "a warp releases one item");
    }
    ring.released[i] = item + 1;
  }
  wake(pipeline);
  release();
}

void check_item(const Cell& cell, const char* buffer, int index, int thread, bool read, int line) {
  const ItemRing& ring = ring_of(cell);
  const Thread& self = machine.threads[thread];
  const int item = item_of(cell), lanes = self.state == kAtCollective ? self.operands.lanes : 1;
  const int group = thread / lanes * lanes;  // of a warpgroup one thread of each warp is looked at
  for (int i = lanes > 32 ? group : thread; i < group + lanes; i += 32) {
    const bool awaited = i < ring.consumers && ring.awaited[i] > item;
    if (awaited && (!read || ring.released[i] <= item)) continue;
    char detail[160];
    const char* const what = awaited ? "it has released item %d of %s, which is here"
                             : read  ? "item %d of %s is copied here, which it has not awaited"
                                     : "written, and item %d of %s is copied here, which it has not awaited";
    snprintf(detail, sizeof detail, what, item, ring.name);
    fail(awaited || !read ? kRace : kPending, buffer, index, i, cell.writer, line, detail);
  }
  const bool again = !machine.read.empty() && machine.read.back() == cell.item;
  if (read && lanes > 32 && !again) machine.read.push_back(cell.item);
}

void end_product(bool deferred) {
  const int lanes = 128, first = machine.current / lanes * lanes;
  for (int i = first; i < first + lanes; ++i) {
    std::vector<unsigned>& open = machine.threads[i].open;
    if (deferred) open.insert(open.end(), machine.read.begin(), machine.read.end());
    else open.clear();  // all products of the warpgroup are complete
  }
  machine.read.clear();
}

bool find_deadlock() {
  int waiting = -1, absent = -1, met = -1;
  for (int i = 0; i < machine.launch.threads; ++i) {
    const State state = machine.threads[i].state;
    if (state == kAtPipeline) waiting = i;
    if (!machine.pipelines.empty() && i < machine.pipelines[0].consumers) {
      if (state == kDone) absent = i;
      if (state == kAtBarrier || state == kAtCollective) met = i;
    }
  }
  if (waiting < 0 || (absent >= 0 && met >= 0)) return false;
  const Thread& thread = machine.threads[waiting];
  const ItemRing& ring = machine.pipelines[thread.pipeline];
  char detail[160];
  int other = -1;
  if (waiting < ring.consumers) {
    const bool acquired = thread.item < (int)ring.arrived.size();
    snprintf(detail, sizeof detail, "it awaits an item for ever; %d of %d bytes have arrived, and the producer %s",
             acquired ? ring.arrived[thread.item] : 0, ring.bytes,
             machine.threads[ring.consumers].state == kDone ? "has ended" : "waits");
  } else {
    other = holder(ring, thread.item - ring.slots);
    const Thread& late = machine.threads[other];
    const char* const does = late.state == kDone ? "has ended" : late.state == kAtPipeline ? "awaits an item" : "waits";
    snprintf(detail, sizeof detail, "it waits for ever until all have released item %d, and thread %d %s at line %d",
             thread.item - ring.slots, other, does, late.line);
  }
  record(kDeadlock, ring.name, thread.item, waiting, other, thread.line, detail);
  return true;
}

void check_items() {
  for (const ItemRing& ring : machine.pipelines) {
    for (int i = 0; i < ring.consumers; ++i) {
      if (ring.awaited[i] == (int)ring.arrived.size()) continue;
      return record(kPending, ring.name, ring.awaited[i], i, -1, machine.threads[i].line,
                    "it has ended and has not awaited all items");
    }
  }
}

}  // namespace emu
}  // namespace mf
