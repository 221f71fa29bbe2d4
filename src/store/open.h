// From a URL, as users write it, to a store.
#pragma once

#include <memory>
#include <string_view>

#include "store/store.h"

namespace deltawire {

// "file:///absolute/path" (percent-escapes decoded; no host but "" and "localhost") or a plain path, absolute
// or relative to the working folder. Other schemes are kUnsupported. create: make the folder when it is
// missing; otherwise that is kNotFound. shared_ptr: catalog readers, writers and background uploads share one
// store.
Result<std::shared_ptr<Store>> OpenStore(std::string_view url, bool create);
// For a reader that may start before the writer: nothing is made, and a folder that is missing is kNotFound
// when it is read, until it is there.
Result<std::shared_ptr<Store>> OpenStoreToRead(std::string_view url);

}  // namespace deltawire
