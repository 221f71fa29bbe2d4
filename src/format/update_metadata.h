// What update files say of themselves in safetensors metadata, whatever their coding (docs/formats/update.md,
// "Metadata" and "Content hash").
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "format/safetensors.h"
#include "format/update_file.h"

namespace deltawire::format {

using Metadata = std::map<std::string, std::string>;

// `code` naming the first field that is not as docs/formats/update.md has it.
Status CheckUpdateHeader(const UpdateHeader& header, Code code);
// run, number, base, writer, inventory, base_digest and digest, each key with `prefix` before it.
Metadata UpdateHeaderMetadata(const UpdateHeader& header, std::string_view prefix = "");
// The same back: kCorrupt naming the key. Other keys are not looked at.
Result<UpdateHeader> UpdateHeaderFrom(const Metadata& metadata, std::string_view prefix = "");

// XXH3-128, as 32 hexadecimal digits, of metadata without `content_key`, entries by name, then the data.
std::string UpdateContentHash(const Metadata& metadata, std::string_view content_key,
                              std::vector<SafetensorsEntry> entries, std::initializer_list<ByteSpan> data);

}  // namespace deltawire::format
