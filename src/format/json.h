// Strict reading of JSON from outside: limits before memory, no duplicate keys, exact integers, no
// exceptions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "tensor/digest.h"

namespace deltawire::format {

struct JsonLimits {
  uint64_t max_bytes = 0;
  uint64_t max_depth = 16;
  uint64_t max_values = 8'000'000;  // about 1 GB of nlohmann::json at worst
};

// What a JSON text says, piece by piece. An error stops the scan and is its result.
class JsonVisitor {
 public:
  virtual ~JsonVisitor() = default;
  virtual Status BeginObject() = 0;
  virtual Status EndObject() = 0;
  virtual Status BeginArray() = 0;
  virtual Status EndArray() = 0;
  virtual Status Key(std::string&& key) = 0;
  virtual Status String(std::string&& value) = 0;
  virtual Status Unsigned(uint64_t value) = 0;
  // A number that is not spelled as an unsigned integer below 2^64: 4.0, 4e0, -1, -0, 18446744073709551616.
  virtual Status OtherNumber(double value) = 0;
  virtual Status Literal(std::optional<bool> value) = 0;  // true, false; nullopt: null
};

// Scans one JSON value. kCorrupt for what RFC 8259 does not allow, a byte order mark, a NUL, lone surrogates,
// text above max_bytes or nested deeper than max_depth (max_values is not looked at). Duplicate keys are the
// visitor's to find. `what` names the text in messages ("manifest").
Status ScanJson(ByteSpan text, const JsonLimits& limits, std::string_view what, JsonVisitor& visitor);

// The same as a document, without duplicate keys. Integers are exact: what Unsigned() reported
// is_number_unsigned(), nothing else is.
Result<nlohmann::json> ParseJson(ByteSpan text, const JsonLimits& limits, std::string_view what);

// Reads fields of one JSON object; errors are kCorrupt and name the path of the field. Holds a reference.
class JsonObject {
 public:
  static Result<JsonObject> From(const nlohmann::json& value, std::string path);

  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  std::string Path(std::string_view key) const;

  Result<uint64_t> Unsigned(std::string_view key) const;
  Result<std::string> String(std::string_view key) const;
  Result<JsonObject> Object(std::string_view key) const;
  // The elements of an array, for JsonObject::From with path "PATH[i]".
  Result<const nlohmann::json*> Array(std::string_view key) const;
  // 64 lower-case hexadecimal digits.
  Result<std::string> Sha256(std::string_view key) const;
  Result<Digest> StateDigest(std::string_view key) const;

  // kCorrupt unless field "format" is `format`; kUnsupported, naming both, unless "format_version" is
  // `version`.
  Status CheckFormat(std::string_view format, uint64_t version) const;

 private:
  JsonObject(const nlohmann::json& value, std::string path) : value_(&value), path_(std::move(path)) {}
  const nlohmann::json* Find(std::string_view key) const;
  Result<const nlohmann::json*> Require(std::string_view key) const;

  const nlohmann::json* value_;
  std::string path_;
};

// Compact JSON with sorted keys; text that is not UTF-8 is replaced, never an exception.
std::string CompactText(const nlohmann::json& value);

}  // namespace deltawire::format
