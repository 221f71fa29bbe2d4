// What the command writes: lines and JSON to stdout, errors and progress to stderr.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace deltawire::cli {

// Sorted keys would hide the order in which things are said.
using Json = nlohmann::ordered_json;

class Output {
 public:
  // Colours only on a terminal, and not with NO_COLOR (no-color.org) or TERM=dumb.
  Output();

  bool json = false;

  // As it is: names from outside go through Facts, Table or format::Quoted, which keep a line a line.
  void Line(std::string_view text);
  // One compact JSON value a line.
  void JsonLine(const Json& value);
  // Aligned "name  value" lines.
  void Facts(const std::vector<std::pair<std::string, std::string>>& facts);
  // Columns as wide as their widest cell; the first row is the header. align: 'l' or 'r' for each column.
  void Table(std::vector<std::vector<std::string>> rows, std::string_view align);
  // "deltawire: CODE: message" on stderr, in one line whatever the message holds; with --json also
  // {"error": {"code", "message"}} on stdout.
  void Error(std::string_view code, std::string_view message);
  void Error(const deltawire::Error& error) { Error(CodeName(error.code()), error.message()); }
  // As an error, about something that does not end the command; stderr only.
  void Warning(std::string_view code, std::string_view message);

  std::string Good(std::string_view text) const { return Painted("32", text); }
  std::string Bad(std::string_view text) const { return Painted("31", text); }
  std::string Strong(std::string_view text) const { return Painted("1", text); }

  // A bar on stderr for as long as the result lives; draws nothing unless stderr is a terminal. Called with
  // (done, total) from one thread at a time.
  std::function<void(uint64_t, uint64_t)> Progress(std::string label);
  // Removes the bar, if one is drawn.
  void EndProgress();

  // kIo when something of stdout could not be written.
  Status Flush();

 private:
  std::string Painted(std::string_view escape, std::string_view text) const;

  bool colours_ = false;
  bool bars_ = false;
  bool bar_drawn_ = false;
};

// "12", "1,234,567".
std::string CountText(uint64_t count);
// "812 B", "1.23 GB": decimal units.
std::string BytesText(uint64_t bytes);
// "0.214 %".
std::string ShareText(uint64_t part, uint64_t whole);
// "12 s", "3 h 5 min", "2 d 4 h".
std::string AgeText(double seconds);
// "1.59", or "-" when nothing changed.
std::string BytesPerChangeText(uint64_t bytes, uint64_t changed);
// The same as JSON: a number or null.
Json RatioJson(uint64_t part, uint64_t whole);

}  // namespace deltawire::cli
