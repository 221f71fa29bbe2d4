// The safetensors container: header text <-> entries (docs/formats/safetensors.md). Data bytes never pass
// through here.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace deltawire::format {

// Largest header length N, as the reference reader has it.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr uint64_t kMaxSafetensorsRank = 64;

struct SafetensorsEntry {
  std::string name;
  Dtype dtype = Dtype::kU8;
  Shape shape = {};
  uint64_t begin = 0;  // relative to SafetensorsHeader::data_offset
  uint64_t end = 0;

  friend bool operator==(const SafetensorsEntry&, const SafetensorsEntry&) = default;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in file order: by begin, then end, then name
  std::map<std::string, std::string> metadata;
  uint64_t data_offset = 0;  // of the first data byte in the file: 8 + N

  friend bool operator==(const SafetensorsHeader&, const SafetensorsHeader&) = default;
};

// How many bytes from the start of the file ParseSafetensors needs (8 + N). first8 holds the file's first
// eight bytes, or all of a shorter file. kCorrupt when N is 0, above the limit or past the end of the file.
Result<uint64_t> SafetensorsHeaderBytes(ByteSpan first8, uint64_t file_size);

// prefix: at least the first 8 + N bytes of a file of file_size bytes. kCorrupt where the header is malformed
// or its entries do not tile the data exactly; kUnsupported for the sub-byte dtypes F4 and F6_*. Duplicate
// names (after unescaping) are errors. Names are not judged otherwise: "" and embedded NUL are reported, by
// name, where an inventory is made (CheckTensorName). Memory O(N); 10^6 tensors take about a second.
Result<SafetensorsHeader> ParseSafetensors(ByteSpan prefix, uint64_t file_size);

// Assigns begin and end in the order the reference writer uses for checkpoints: dtype descending, then name.
// kInvalidArgument where sizes overflow.
Result<std::vector<SafetensorsEntry>> LayoutCheckpoint(std::vector<SafetensorsEntry> entries);
// The same, keeping the given order.
Result<std::vector<SafetensorsEntry>> LayoutInOrder(std::vector<SafetensorsEntry> entries);

// The 8 + N bytes that come before the data: compact JSON, metadata first and sorted by key, entries in the
// given order, padded with spaces to a multiple of 8. Equal inputs give equal bytes. entries: laid out.
// kInvalidArgument for an empty, NUL-bearing, duplicate, reserved ("__metadata__") or non-UTF-8 name, and for
// a header above the limit.
Result<Bytes> WriteSafetensorsHeader(const std::vector<SafetensorsEntry>& entries,
                                     const std::map<std::string, std::string>& metadata);

}  // namespace deltawire::format
