// Options and reports that the commands on patches and checkpoints share.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/output.h"
#include "pubsub/patch_file.h"
#include "pubsub/version.h"
#include "sync/catalog.h"

namespace deltawire::cli {

// --threads on `command`; the value lives as long as the result.
std::shared_ptr<int> AddThreads(CLI::App* command);
pubsub::PatchOptions MakePatchOptions(Output& out, int threads, const std::string& label);

// What commands that write a patch share: -o, --force and --threads; kExists without --force.
struct NewPatch {
  std::string path;
  bool force = false;
  std::shared_ptr<int> threads;

  void AddTo(CLI::App* command);
  Status Check() const;
};
// "1,234 (0.95 a changed element)".
std::string PatchBytesText(const pubsub::Version& version);

// The store behind a URL or folder that must exist, as a catalog.
Result<sync::Catalog> OpenCatalog(const std::string& url);

// Every field of a version that its source fills in.
Json VersionJson(const pubsub::Version& version);
// "7,074 of 3,245,824 (0.218 %)".
std::string ChangedText(uint64_t changed, uint64_t total);

}  // namespace deltawire::cli
