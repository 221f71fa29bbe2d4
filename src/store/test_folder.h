// A folder that lives as long as a test.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

namespace deltawire {

class TestFolder {
 public:
  TestFolder() {
    auto name = (std::filesystem::temp_directory_path() / "deltawire-test-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace deltawire
