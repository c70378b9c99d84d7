// The emulated kernel's entry: `mf_emulate` of a shared library, or with MF_EMULATE_MAIN a program of its own, which
// sanitizers need. The including file defines mf_launch() before.
#pragma once
#include "runtime.h"

#ifdef MF_EMULATE_MAIN
#include <stdio.h>
#include <stdlib.h>

// Arguments: one file for each parameter, which holds an input or receives an output, and one for the fault.
int main(int argc, char** argv) {
  mf::emu::Launch launch = mf_launch();
  if (argc != launch.param_count + 2) return 2;
  std::vector<void*> data;
  for (int i = 0; i < launch.param_count; ++i) {
    const mf::emu::Param& param = launch.params[i];
    const size_t bytes = (size_t)param.elements * param.bytes;
    void* memory = nullptr;
    if (posix_memalign(&memory, 16, bytes) != 0) return 2;
    memset(memory, 0xff, bytes);
    data.push_back(memory);
    if (param.written) continue;
    FILE* file = fopen(argv[1 + i], "rb");
    if (file == nullptr || fread(memory, 1, bytes, file) != bytes) return 2;
    fclose(file);
  }
  mf::emu::Fault fault;
  const char* const seed = getenv("MF_EMULATOR_SEED");
  mf::emu::run(launch, data.data(), &fault, seed == nullptr ? 0 : atoi(seed));
  for (int i = 0; i <= launch.param_count; ++i) {
    const bool last = i == launch.param_count;
    if (!last && !launch.params[i].written) continue;
    const void* memory = last ? &fault : data[i];
    const size_t bytes = last ? sizeof fault : (size_t)launch.params[i].elements * launch.params[i].bytes;
    FILE* file = fopen(argv[1 + i], "wb");
    if (file == nullptr || fwrite(memory, 1, bytes, file) != bytes) return 2;
    fclose(file);
  }
  for (void* memory : data) free(memory);
  return 0;
}

#else

extern "C" __attribute__((visibility("default"))) int mf_emulate(void* const* data, mf::emu::Fault* fault,
                                                                        unsigned seed) {
  return mf::emu::run(mf_launch(), data, fault, seed);
}

#endif
