// Publishes checkpoints as the versions of a run: `publish_checkpoints STORE CKPT...`, the trainer of the
// command's tests. Options before STORE: --base (version 0 is a patch on the first checkpoint, not an
// anchor),
// --anchor-every N, --resume, --codings A,B, --pause MS (between versions).
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/clock.h"
#include "pubsub/checkpoint.h"
#include "pubsub/coding_name.h"
#include "pubsub/publisher.h"
#include "store/open.h"

namespace {

using namespace deltawire;

std::vector<codec::Coding> Codings(std::string_view text) {
  std::vector<codec::Coding> codings;
  while (!text.empty()) {
    const auto comma = std::min(text.find(','), text.size());
    codings.push_back(pubsub::CodingFromName(text.substr(0, comma)).value());
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return codings;
}

// The live weights: the bytes of the first checkpoint, then of each next one.
struct Live {
  std::vector<std::shared_ptr<Memory>> memory;
  std::vector<pubsub::PublishedTensor> tensors;

  void Load(const pubsub::Checkpoint& checkpoint) {
    for (size_t i = 0; i < checkpoint.tensors().size(); ++i) {
      const TensorView& from = checkpoint.tensors()[i].view;
      if (memory[i]->size_bytes() == 0) continue;
      std::memcpy(memory[i]->handle(), static_cast<const uint8_t*>(from.memory->handle()) + from.offset_bytes,
                  memory[i]->size_bytes());
    }
  }
};

Status Publish(int argc, char** argv) {
  pubsub::PublisherOptions options;
  bool with_base = false;
  int64_t pause_ms = 0;
  int at = 1;
  for (; at < argc && std::string_view(argv[at]).starts_with("--"); ++at) {
    const std::string_view flag = argv[at];
    if (flag == "--base") with_base = true;
    if (flag == "--resume") options.resume = true;
    if (flag == "--anchor-every") options.anchor_every = std::strtoull(argv[++at], nullptr, 10);
    if (flag == "--codings") options.codings = Codings(argv[++at]);
    if (flag == "--pause") pause_ms = std::strtoll(argv[++at], nullptr, 10);
  }
  DELTAWIRE_ASSIGN(options.store, OpenStore(argv[at++], true));
  DELTAWIRE_ASSIGN(const auto first, pubsub::Checkpoint::Open(argv[at++]));
  if (with_base) options.base = first.path();
  options.cast_rule = "as stored";
  Live live;
  for (const auto& tensor : first.tensors()) {
    const auto& view = tensor.view;
    live.memory.push_back(AllocateHost(*ElementCount(view.shape) * DtypeBytes(view.dtype)));
    live.tensors.push_back({.name = tensor.name,
                            .aliases = {},
                            .live = TensorView::RowMajor(live.memory.back(), 0, view.dtype, view.shape),
                            .served = view.dtype,
                            .method = detect::Method::kSnapshot,
                            .reason = "a test"});
  }
  live.Load(first);
  DELTAWIRE_ASSIGN(const auto publisher, pubsub::Publisher::Open(std::move(options), live.tensors));
  for (; at < argc; ++at) {
    SystemClock().SleepMillis(pause_ms);
    DELTAWIRE_ASSIGN(const auto next, pubsub::Checkpoint::Open(argv[at]));
    live.Load(next);
    DELTAWIRE_TRY(publisher->Publish());
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const Status done = Publish(argc, argv);
  if (!done) std::fprintf(stderr, "publish_checkpoints: %s\n", done.error().message().c_str());
  return done ? 0 : 1;
}
