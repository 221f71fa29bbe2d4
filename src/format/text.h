// Checks and spellings of text that formats carry.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace deltawire::format {

// Well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
bool IsUtf8(std::string_view text);
// `digits` lower-case hexadecimal digits.
bool IsLowerHex(std::string_view text, size_t digits);
// 1 to 64 of A-Z a-z 0-9 _ -: writers, attempts, codings. Safe inside object names.
bool IsIdentifier(std::string_view text);
// Run names: 1 to 256 bytes of UTF-8 without control characters.
bool IsRunName(std::string_view text);

// The number that text spells: decimal digits without a leading zero, below 2^64.
std::optional<uint64_t> DecimalFromText(std::string_view text);

// For messages: in double quotes, at most about 120 bytes, control characters and non-UTF-8 escaped.
std::string Quoted(std::string_view text);

// Appends text as a JSON string: " and \ escaped, control characters as \b \f \n \r \t or \u00xx, everything
// else as it is (Python: json.dumps(text, ensure_ascii=False)).
void AppendJsonString(std::string_view text, std::string& out);

}  // namespace deltawire::format
