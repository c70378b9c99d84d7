// Producers and pipelines for g++: the names of include/mirage_formal/pipeline.cuh, each checked.
//
// Items are counted, where a GPU has the parities of its barriers: what a parity would let pass by chance is found.
#pragma once
#include "memory.h"

#define MF_TENSOR_MAP const mf::TensorMap
#define MF_PIPELINE(name, slots, bytes, warps) \
  const mf::Pipeline name = mf::emu::find_pipeline(#name, slots, bytes, warps, __LINE__)
#define MF_CONSUMERS(count) \
  if (mf::emu::end_producer(count, __LINE__)) return

namespace mf {

// The view of a parameter has nothing to say here: copies name the parameter, the rows and the stride.
struct TensorMap {};

template <class... Pipelines>
static inline void start_pipelines(const Pipelines&... pipelines) {
  const Pipeline* const each[] = {&pipelines...};
  emu::start_pipelines(each, sizeof...(pipelines));
}

template <int Consumers>
static inline bool is_producer(int line = __builtin_LINE()) {
  emu::expect_consumers(Consumers, line);
  return emu::machine.current == Consumers;
}

template <int Consumers>
static inline void consumer_barrier(int line = __builtin_LINE()) {
  emu::expect_consumers(Consumers, line);
  emu::block_barrier(line, Consumers);
}

template <int Consumers>
static inline void fenced_consumer_barrier(int line = __builtin_LINE()) {
  consumer_barrier<Consumers>(line);
}

static inline void acquire(const Pipeline& pipeline, int item, int line = __builtin_LINE()) {
  emu::acquire_item(pipeline.number, item, line);
}

static inline void await(const Pipeline& pipeline, int item, int line = __builtin_LINE()) {
  emu::await_item(pipeline.number, item, line);
}

static inline void release(const Pipeline& pipeline, int item, int line = __builtin_LINE()) {
  emu::release_item(pipeline.number, item, line);
}

namespace emu {

// The rows of a tile lie in rows of the map, which has the whole rows of the parameter.
static inline void check_tile(const Param& param, int source, int rows, int stride, int line) {
  const int self = machine.current;
  if (source < 0 || source / stride + rows > param.elements / stride) {
    const long long index = source < 0 ? source : param.elements;
    fail(kOutOfBounds, param.name, index, self, -1, line, "a row of the tile lies beyond the rows of the map");
  }
  if (source % stride + kTileColumns > stride) {
    fail(kOutOfBounds, param.name, source, self, -1, line, "a row of the tile does not lie in one row of the map");
  }
  if (stride % 8 != 0 || param.align % 16 != 0) {
    fail(kMisaligned, param.name, source, self, -1, line, "rows of a map begin at multiples of 16 bytes");
  }
}

}  // namespace emu

// The destination is poisoned at once. Its bytes arrive later: see issue_copy.
template <int Rows, int Stride, class T>
static inline void copy_tile(const Pipeline& pipeline, int item, const Shared<T>& buffer, int at, const TensorMap&,
                             const Input<T>& param, int source, int line = __builtin_LINE()) {
  static_assert(sizeof(T) == 2 && Rows % 8 == 0 && Rows <= 256 && Stride % 8 == 0, "a tile is of whole units");
  const int self = emu::machine.current, first = 512 * at, count = Rows * emu::kTileColumns;
  emu::check_tile(*param.param, source, Rows, Stride, line);
  if (at < 0 || at % 2 != 0 || buffer.offset % 1024 != 0) {
    emu::fail(emu::kMisaligned, buffer.name, first, self, -1, line, "a tile begins at a multiple of 2,048 bytes");
  }
  emu::check_range(buffer, first, count, self, line);
  emu::machine.fault->loaded += count * sizeof(T);
  emu::issue_copy({pipeline.number, item, buffer.name, first, buffer.owner, buffer.at(first), Rows, Stride,
                   param.param->data + (size_t)source * sizeof(T)},
                  line);
}

}  // namespace mf
