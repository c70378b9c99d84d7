// Checked memory: register arrays, shared buffers and parameters, with the shadow that finds faults.
//
// Line numbers come from __builtin_LINE() as a default argument, which names the caller's line: a line of the kernel.
#pragma once
#include "runtime.h"

namespace mf {

// An index that remembers where it was written, for operators that cannot have default arguments.
struct Index {
  int value, line;
  Index(int value, int line = __builtin_LINE()) : value(value), line(line) {}
};

// A register array; the constructor poisons it, and reading a poisoned element is a fault.
template <class T, int N>
struct Registers {
  T values[N];
  const char* name;

  static T poison() {
    const unsigned bits = sizeof(T) == 4 && T(0.5f) != T(0) ? 0x7fa5a5a5u : 0xfdedfdedu;
    T out;
    memcpy(&out, &bits, 4);
    return out;
  }

  explicit Registers(const char* name) : name(name) {
    const T value = poison();
    for (int i = 0; i < N; ++i) memcpy(&values[i], &value, 4);
  }

  // The elements at .. at+count-1, to write; or to read as well, if `filled`.
  T* span(int at, int count, bool filled, int line) {
    if (at < 0 || at + count > N) {
      const int index = at < 0 || at >= N ? at : N;
      emu::fail(emu::kOutOfBounds, name, index, emu::machine.current, -1, line, "register array");
    }
    const T value = poison();
    for (int i = 0; filled && i < count; ++i) {
      if (memcmp(&values[at + i], &value, 4) == 0) {
        emu::fail(emu::kUninitialised, name, at + i, emu::machine.current, -1, line, "register array");
      }
    }
    return values + at;
  }

  struct Element {
    Registers& array;
    Index at;
    operator T() const { return *array.span(at.value, 1, true, at.line); }
    Element& operator=(T value) {
      *array.span(at.value, 1, false, at.line) = value;
      return *this;
    }
    Element& operator=(const Element& other) { return *this = T(other); }
  };

  Element operator[](Index at) { return Element{*this, at}; }
};

template <int N>
using Floats = Registers<float, N>;
template <int N>
using Words = Registers<unsigned, N>;

// A buffer in shared memory; `owner` tells buffers apart that share bytes.
template <class T>
struct Shared {
  const char* name;
  int count, offset, owner;
  int at(int index) const { return offset + index * (int)sizeof(T); }
};

template <class T>
struct Input {
  const emu::Param* param;
};

template <class T>
struct Output {
  const emu::Param* param;
};

// Results of some blocks that later blocks of the launch read; and the counters of their groups, see Machine.
template <class T>
struct Handed {
  const emu::Param* param;
  operator Input<T>() const { return {param}; }
  operator Output<T>() const { return {param}; }
};
struct Counters {};

namespace emu {

template <class T>
static void check_range(const Shared<T>& buffer, int index, int count, int thread, int line) {
  if (index < 0 || index > buffer.count - count) {
    fail(kOutOfBounds, buffer.name, index < 0 || index >= buffer.count ? index : buffer.count, thread, -1, line,
         "shared buffer");
  }
  // Memory that the launch did not ask for.
  if (buffer.at(index + count) > (int)machine.shared.size()) {
    fail(kOutOfBounds, buffer.name, index, thread, -1, line, "the launch has less shared memory");
  }
}

template <class T>
static void check_bounds(const Shared<T>& buffer, int index, int count, int thread, int line) {
  check_range(buffer, index, count, thread, line);
  if (buffer.at(index) % (count * (int)sizeof(T)) != 0) {
    fail(kMisaligned, buffer.name, index, thread, -1, line, "an access must be aligned to its size");
  }
}

static inline void check_param(const Param& param, int index, int count, int line) {
  if (index < 0 || index > param.elements - count) {
    fail(kOutOfBounds, param.name, index < 0 || index >= param.elements ? index : param.elements, machine.current, -1,
         line, "parameter");
  }
  const int bytes = count * param.bytes;
  if (!param.written) machine.fault->loaded += bytes;
  if ((long long)index * param.bytes % bytes != 0 || bytes > param.align) {
    fail(kMisaligned, param.name, index, machine.current, -1, line, "an access must be aligned to its size");
  }
}

// One thread, or a whole warp (kMany), reads `count` elements. No two elements share a cell.
template <class T>
static void note_read(const Shared<T>& buffer, int index, int count, int reader, int thread, int line) {
  const int step = (int)sizeof(T) >> machine.launch.cell;
  Cell* cell = &machine.cells[buffer.at(index) >> machine.launch.cell];
  for (int i = 0; i < count * step; ++i, ++cell) {
    const int element = index + i / step;
    if (cell->item != 0) check_item(*cell, buffer.name, element, thread, true, line);
    if (cell->state == kInFlight) {
      fail(kPending, buffer.name, element, thread, cell->writer, line,
           "an asynchronous copy of the other thread to these bytes is still in flight");
    }
    if (cell->write_epoch == machine.epoch && cell->writer != reader) {
      fail(kRace, buffer.name, element, thread, cell->writer, line,
           "read, and written by the other thread, with no barrier in between");
    }
    if (cell->state == kEmpty) {
      fail(kUninitialised, buffer.name, element, thread, -1, line, "nothing was written here before");
    }
    if (cell->owner != buffer.owner) {
      fail(kStale, buffer.name, element, thread, cell->writer, line,
           "these bytes were last written through another buffer");
    }
    cell->reader = cell->read_epoch == machine.epoch && cell->reader != reader ? kMany : reader;
    cell->read_epoch = machine.epoch;
  }
}

template <class T>
static void note_write(const Shared<T>& buffer, int index, int count, CellState state, int line) {
  const int thread = machine.current, step = (int)sizeof(T) >> machine.launch.cell;
  Cell* cell = &machine.cells[buffer.at(index) >> machine.launch.cell];
  for (int i = 0; i < count * step; ++i, ++cell) {
    const int element = index + i / step;
    if (cell->item != 0) check_item(*cell, buffer.name, element, thread, false, line);
    if (cell->state == kInFlight) {
      fail(kRace, buffer.name, element, thread, cell->writer, line,
           "written while an asynchronous copy of the other thread to these bytes is in flight");
    }
    if (cell->write_epoch == machine.epoch && cell->writer != thread) {
      fail(kRace, buffer.name, element, thread, cell->writer, line,
           "written, and written by the other thread, with no barrier in between");
    }
    if (cell->read_epoch == machine.epoch && cell->reader != thread) {
      fail(kRace, buffer.name, element, thread, cell->reader == kMany ? -1 : cell->reader, line,
           "written, and read by another thread, with no barrier in between");
    }
    cell->write_epoch = machine.epoch;
    cell->writer = thread;
    cell->owner = buffer.owner;
    cell->state = state;
    cell->item = 0;
  }
}

// What this launch itself writes may be read by the last block of a group, if a block of the group has written it.
static inline void note_input(const Param& param, int index, int count, int line) {
  if (!param.written) return;
  for (int i = 0; i < count; ++i) {
    const unsigned writer = (*param.writers)[index + i];
    if (writer == 0) {
      fail(kUninitialised, param.name, index + i, machine.current, -1, line, "no thread of this launch wrote it before");
    }
    const int group = machine.arrivals[(writer - 1) / machine.launch.threads];
    if (machine.last_of < 0 || group != machine.last_of) fail_unordered(param, index + i, writer, line);
  }
}

static inline void note_output(const Param& param, int index, int count, int line) {
  const unsigned self = machine.block_number * machine.launch.threads + machine.current + 1;
  for (int i = 0; i < count; ++i) {
    unsigned& writer = (*param.writers)[index + i];
    if (writer != 0 && writer != self) fail_double_write(param, index + i, writer, line);
    writer = self;
  }
  machine.threads[machine.current].unpublished = line;
}

}  // namespace emu
}  // namespace mf
