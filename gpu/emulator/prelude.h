// What every emulated kernel begins with. Compilers that can read it precompiled do so: mirage_formal.device.emulate.
#pragma once
#define MF_EMULATE
#include "mirage_formal/device.cuh"
#include "runtime.h"
