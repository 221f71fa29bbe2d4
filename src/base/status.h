// Errors of the whole library. What can fail returns Status or Result<T>; nothing under src/ throws.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace deltawire {

// Grouped by the largest thing the caller must discard. docs/failures.md has one row for each.
enum class Code : uint8_t {
  // The request: nothing else is harmed, the caller may correct and repeat it.
  kInvalidArgument,  // a value outside its documented range
  kNotFound,         // a named object, tensor, version or file does not exist
  kExists,           // create-if-absent found something there
  kUnsupported,      // valid, but this build or format version does not do it
  kIo,               // the operating system or store failed; may succeed when repeated
  kNoSpace,          // disk or quota full; free space and repeat
  kCancelled,        // stopped by the caller or by a deadline
  // The update: these bytes must not be applied here.
  kCorrupt,        // bytes contradict their own hash or grammar
  kWrongBase,      // the receiver does not hold the version this update starts from
  kWrongRun,       // the update belongs to another run
  kMismatch,       // names, shapes, dtypes or aliases differ from the inventory
  kDetectorFault,  // intact bytes, right base, wrong result: detector, base or hardware at fault
  // The peer: this publisher or store must not be used any further.
  kFenced,  // another publisher owns the run
  // The engine: the target's state is no longer known.
  kUnusable,
  // A bug of ours.
  kInternal,
};

// Stable lower-case identifier ("wrong_base"), used in JSON output and in docs/failures.md.
std::string_view CodeName(Code code);

// What was found, what was expected, where, and what to do: one sentence each, in that order.
class [[nodiscard]] Error {
 public:
  Error(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same error seen from further out: "version 12: tensor w: ...".
  Error Within(std::string_view context) const {
    return Error(code_, fmt::format("{}: {}", context, message_));
  }

  friend bool operator==(const Error&, const Error&) = default;

 private:
  Code code_;
  std::string message_;
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

template <class... Args>
tl::unexpected<Error> Fail(Code code, fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error(code, fmt::format(format, std::forward<Args>(args)...)));
}
inline tl::unexpected<Error> Fail(Error error) { return tl::unexpected<Error>(std::move(error)); }

}  // namespace deltawire

#define DELTAWIRE_CONCAT_INNER(a, b) a##b
#define DELTAWIRE_CONCAT(a, b) DELTAWIRE_CONCAT_INNER(a, b)

// Returns the error of a Status or Result expression to the caller; discards the value.
#define DELTAWIRE_TRY(expr)                                                         \
  do {                                                                              \
    auto deltawire_try = (expr);                                                    \
    if (!deltawire_try) return ::deltawire::Fail(std::move(deltawire_try).error()); \
  } while (false)

// DELTAWIRE_ASSIGN(auto x, F()): x is F()'s value, or F()'s error is returned to the caller.
#define DELTAWIRE_ASSIGN(lhs, expr) \
  DELTAWIRE_ASSIGN_INNER(DELTAWIRE_CONCAT(deltawire_result_, __LINE__), lhs, expr)
#define DELTAWIRE_ASSIGN_INNER(tmp, lhs, expr)                \
  auto tmp = (expr);                                          \
  if (!tmp) return ::deltawire::Fail(std::move(tmp).error()); \
  lhs = *std::move(tmp)
