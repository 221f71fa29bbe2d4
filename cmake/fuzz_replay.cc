// Runs a fuzz target on the empty input and on each file of a folder, without libFuzzer. The folder may be
// missing: a target whose corpus is empty is still run once.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  const uint8_t nothing = 0;
  LLVMFuzzerTestOneInput(&nothing, 0);
  int inputs = 0;
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1], missing)) {
    std::printf("%s\n", entry.path().c_str());  // the last line names the input that crashed
    std::fflush(stdout);
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    ++inputs;
  }
  std::printf("%d inputs and the empty one\n", inputs);
  return 0;
}
