// Between the library's types and those of the public headers.
#pragma once

#include <string>

#include "base/status.h"
#include "deltawire/expected.h"
#include "deltawire/version_info.h"
#include "pubsub/version.h"
#include "tensor/tensor_view.h"

namespace deltawire::api {

ErrorInfo ToErrorInfo(const Error& error);
VersionInfo ToVersionInfo(const pubsub::Version& version);
Expected<VersionInfo> ToExpected(const Result<pubsub::Version>& version);
Expected<Done> ToExpected(const Status& status);

// A view of host memory that the caller owns. strides empty: row-major. kInvalidArgument naming the tensor.
Result<TensorView> HostView(const std::string& name, void* data, const std::string& dtype,
                            const std::vector<uint64_t>& shape, const std::vector<int64_t>& strides);

}  // namespace deltawire::api
