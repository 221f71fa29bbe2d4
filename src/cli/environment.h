// What this machine offers deltawire, as data: what is missing has a reason, it is not an error.
#pragma once

#include "cli/output.h"

namespace deltawire::cli {

// A fact for people and machines. detail: a value, or why there is none.
struct Fact {
  std::string name;
  bool present = true;
  std::string detail;
  Json json;
};

Fact ProcessorFact();  // kernel target, threads
Fact MemoryFact();
Fact CudaCompilerFact();
Fact GpuFact();
Fact PythonFact();  // python3 with torch, safetensors and deltawire

}  // namespace deltawire::cli
