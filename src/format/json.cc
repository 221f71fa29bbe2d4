#include "format/json.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "format/other_version.h"
#include "format/text.h"

namespace deltawire::format {
namespace {

using Json = nlohmann::json;

// Adapts the library's events: counts depth, keeps the first error, turns its own errors into ours.
class Adapter final : public nlohmann::json_sax<Json> {
 public:
  Adapter(std::string_view what, uint64_t max_depth, JsonVisitor& visitor)
      : what_(what), max_depth_(max_depth), visitor_(visitor) {}

  Status TakeStatus() { return std::move(status_); }

  bool null() override { return Keep(visitor_.Literal(std::nullopt)); }
  bool boolean(bool value) override { return Keep(visitor_.Literal(value)); }
  // Only negative numbers and "-0" arrive here.
  bool number_integer(number_integer_t value) override {
    return Keep(visitor_.OtherNumber(static_cast<double>(value)));
  }
  bool number_unsigned(number_unsigned_t value) override { return Keep(visitor_.Unsigned(value)); }
  bool number_float(number_float_t value, const string_t&) override {
    return Keep(visitor_.OtherNumber(value));
  }
  bool string(string_t& value) override { return Keep(visitor_.String(std::move(value))); }
  bool binary(binary_t&) override {
    return Keep(Fail(Code::kCorrupt, "{}: binary value in a JSON text", what_));
  }
  bool start_object(std::size_t) override { return Enter() && Keep(visitor_.BeginObject()); }
  bool end_object() override {
    --depth_;
    return Keep(visitor_.EndObject());
  }
  bool start_array(std::size_t) override { return Enter() && Keep(visitor_.BeginArray()); }
  bool end_array() override {
    --depth_;
    return Keep(visitor_.EndArray());
  }
  bool key(string_t& value) override { return Keep(visitor_.Key(std::move(value))); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return Keep(Fail(Code::kCorrupt, "{}: not valid JSON at byte {}; the file is damaged or is not a {}",
                     what_, position, what_));
  }

 private:
  bool Enter() {
    if (++depth_ <= max_depth_) return true;
    return Keep(Fail(Code::kCorrupt, "{}: JSON nested deeper than {} levels", what_, max_depth_));
  }
  bool Keep(Status status) {
    if (status) return true;
    status_ = std::move(status);
    return false;
  }

  std::string_view what_;
  uint64_t max_depth_;
  JsonVisitor& visitor_;
  uint64_t depth_ = 0;
  Status status_;
};

// Builds a document.
class Builder final : public JsonVisitor {
 public:
  Builder(std::string_view what, uint64_t max_values) : what_(what), max_values_(max_values) {}

  Json TakeRoot() { return std::move(root_); }

  Status BeginObject() override { return Open(Json::object()); }
  Status EndObject() override { return Close(); }
  Status BeginArray() override { return Open(Json::array()); }
  Status EndArray() override { return Close(); }
  Status Key(std::string&& key) override {
    if (open_.back()->contains(key)) {
      return Fail(Code::kCorrupt, "{}: key {} appears twice in one object", what_, Quoted(key));
    }
    key_ = std::move(key);
    return {};
  }
  Status String(std::string&& value) override { return Add(Json(std::move(value))); }
  Status Unsigned(uint64_t value) override { return Add(Json(value)); }
  Status OtherNumber(double value) override { return Add(Json(value)); }
  Status Literal(std::optional<bool> value) override { return Add(value ? Json(*value) : Json(nullptr)); }

 private:
  Status Add(Json value) {
    DELTAWIRE_TRY(Count());
    Place(std::move(value));
    return {};
  }
  Status Open(Json value) {
    DELTAWIRE_TRY(Count());
    open_.push_back(Place(std::move(value)));
    return {};
  }
  Status Close() {
    open_.pop_back();
    return {};
  }
  Status Count() {
    if (++values_ <= max_values_) return {};
    return Fail(Code::kCorrupt, "{}: more than {} JSON values", what_, max_values_);
  }
  // Only the innermost container grows, so pointers to the others stay valid.
  Json* Place(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[std::move(key_)] = std::move(value));
  }

  std::string_view what_;
  uint64_t max_values_;
  uint64_t values_ = 0;
  Json root_;
  std::vector<Json*> open_;
  std::string key_;
};

std::string_view TypeOf(const Json& value) {
  if (value.is_number_float()) return "a number that is not an unsigned 64-bit integer";
  if (value.is_number()) return "a number";
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  if (value.is_string()) return "a string";
  return value.is_null() ? "null" : "a boolean";
}

}  // namespace

Status ScanJson(ByteSpan text, const JsonLimits& limits, std::string_view what, JsonVisitor& visitor) {
  if (text.size() > limits.max_bytes) {
    return Fail(Code::kCorrupt, "{}: {} bytes of JSON; at most {} are read", what, text.size(),
                limits.max_bytes);
  }
  if (text.size() >= 3 && text[0] == 0xEF && text[1] == 0xBB && text[2] == 0xBF) {
    return Fail(Code::kCorrupt, "{}: begins with a byte order mark, which JSON does not allow", what);
  }
  // The library takes a NUL for the end of its input and would ignore what follows.
  if (const auto nul = std::find(text.begin(), text.end(), uint8_t{0}); nul != text.end()) {
    return Fail(Code::kCorrupt, "{}: NUL at byte {}", what, nul - text.begin());
  }
  Adapter adapter(what, limits.max_depth, visitor);
  try {
    if (Json::sax_parse(text.begin(), text.end(), &adapter)) return {};
  } catch (const std::exception& error) {
    return Fail(Code::kCorrupt, "{}: JSON of {} bytes can't be read: {}", what, text.size(), error.what());
  }
  return adapter.TakeStatus();
}

Result<Json> ParseJson(ByteSpan text, const JsonLimits& limits, std::string_view what) {
  Builder builder(what, limits.max_values);
  DELTAWIRE_TRY(ScanJson(text, limits, what, builder));
  return builder.TakeRoot();
}

Result<JsonObject> JsonObject::From(const Json& value, std::string path) {
  if (!value.is_object()) return Fail(Code::kCorrupt, "{}: {}, expected an object", path, TypeOf(value));
  return JsonObject(value, std::move(path));
}

std::string JsonObject::Path(std::string_view key) const { return fmt::format("{}.{}", path_, key); }

const Json* JsonObject::Find(std::string_view key) const {
  const auto found = value_->find(key);
  return found == value_->end() ? nullptr : &*found;
}

Result<const Json*> JsonObject::Require(std::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return Fail(Code::kCorrupt, "{}: missing field \"{}\"", path_, key);
  return value;
}

Result<uint64_t> JsonObject::Unsigned(std::string_view key) const {
  DELTAWIRE_ASSIGN(const Json* value, Require(key));
  if (!value->is_number_unsigned()) {
    return Fail(Code::kCorrupt, "{}: {}, expected an unsigned 64-bit integer", Path(key), TypeOf(*value));
  }
  return value->get<uint64_t>();
}

Result<std::string> JsonObject::String(std::string_view key) const {
  DELTAWIRE_ASSIGN(const Json* value, Require(key));
  if (!value->is_string())
    return Fail(Code::kCorrupt, "{}: {}, expected a string", Path(key), TypeOf(*value));
  return value->get<std::string>();
}

Result<JsonObject> JsonObject::Object(std::string_view key) const {
  DELTAWIRE_ASSIGN(const Json* value, Require(key));
  return From(*value, Path(key));
}

Result<const Json*> JsonObject::Array(std::string_view key) const {
  DELTAWIRE_ASSIGN(const Json* value, Require(key));
  if (!value->is_array()) return Fail(Code::kCorrupt, "{}: {}, expected an array", Path(key), TypeOf(*value));
  return value;
}

Result<std::string> JsonObject::Sha256(std::string_view key) const {
  DELTAWIRE_ASSIGN(std::string text, String(key));
  if (!IsLowerHex(text, 64)) {
    return Fail(Code::kCorrupt, "{}: {}, expected 64 lower-case hexadecimal digits", Path(key), Quoted(text));
  }
  return text;
}

Result<Digest> JsonObject::StateDigest(std::string_view key) const {
  DELTAWIRE_ASSIGN(const std::string text, String(key));
  const auto digest = IsLowerHex(text, 32) ? Digest::FromHex(text) : std::nullopt;
  if (!digest) {
    return Fail(Code::kCorrupt, "{}: {}, expected 32 lower-case hexadecimal digits", Path(key), Quoted(text));
  }
  return *digest;
}

Status JsonObject::CheckFormat(std::string_view format, uint64_t version) const {
  DELTAWIRE_ASSIGN(const std::string found, String("format"));
  if (found != format) {
    return Fail(Code::kCorrupt, "{}: format is {}, expected \"{}\"", path_, Quoted(found), format);
  }
  DELTAWIRE_ASSIGN(const uint64_t found_version, Unsigned("format_version"));
  if (found_version != version) return Fail(OtherVersion(path_, found_version, version));
  return {};
}

std::string CompactText(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace deltawire::format
