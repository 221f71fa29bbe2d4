// Small durable files beside checkpoints.
#pragma once

#include <span>
#include <string>

#include "base/bytes.h"
#include "base/status.h"

namespace deltawire::pubsub {

// Writes path + ".tmp", syncs it, renames it over path and syncs the folder: after a crash the old or the new
// file is there, complete. kNoSpace when the disk is full; nothing is left behind on error.
Status WriteFileDurably(const std::string& path, std::span<const ByteSpan> pieces);
// Copies a file to `to`, which must not exist, within the kernel where the file systems can. Keeps nothing of
// `to` on error. (std::filesystem::copy_file reports a disk that fills up half-way as an I/O error.)
Status CopyFile(const std::string& from, const std::string& to);
// Gives every hole of a sparse file its place on the disk, so that a write through a mapping can't meet a
// full one (which would be SIGBUS). kNoSpace when there is no room; success where the file system has no such
// call.
Status FillHoles(const std::string& path);
// Removes a file and syncs its folder; success when it is gone.
Status RemoveFileDurably(const std::string& path);
// kNoSpace or kIo for errno, as "can't <what> <path>: <reason>".
tl::unexpected<Error> SystemError(std::string_view what, std::string_view path, int error_number);

}  // namespace deltawire::pubsub
