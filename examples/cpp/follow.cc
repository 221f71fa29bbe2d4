// Keeps a checkpoint folder at the newest version of a run: follow URL FOLDER
#include <cstdio>

#include "deltawire/deltawire.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: follow URL FOLDER\n");
    return 2;
  }
  auto subscriber = deltawire::Subscriber::OpenCheckpoint(argv[1], argv[2]);
  if (!subscriber) {
    std::fprintf(stderr, "%s: %s\n", subscriber.error().code.c_str(), subscriber.error().message.c_str());
    return 1;
  }
  const auto version = subscriber->Update();
  if (!version) {
    std::fprintf(stderr, "%s: %s\n", version.error().code.c_str(), version.error().message.c_str());
    return 1;
  }
  std::printf("version %llu, digest %s\n", static_cast<unsigned long long>(version->number), version->digest.c_str());
  return 0;
}
