#include "cli/output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace deltawire::cli {
namespace {

std::string_view Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : value;
}

size_t TerminalWidth() {
  const std::string_view columns = Environment("COLUMNS");
  size_t width = 0;
  std::from_chars(columns.data(), columns.data() + columns.size(), width);
  winsize size{};
  if (width == 0 && ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0) width = size.ws_col;
  return width == 0 ? 80 : width;
}

// Names from files and stores may hold anything; a line stays a line.
std::string OneLine(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      line += "\\n";
    } else if (byte < 0x20 || byte == 0x7F) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += c;
    }
  }
  return line;
}

void Write(FILE* to, std::string_view text) { std::fwrite(text.data(), 1, text.size(), to); }

// Characters, not bytes: tensor names may be any UTF-8.
size_t Width(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

Output::Output() {
  const bool dumb = Environment("TERM") == "dumb";
  colours_ = isatty(STDOUT_FILENO) == 1 && !dumb && Environment("NO_COLOR").empty();
  bars_ = isatty(STDERR_FILENO) == 1 && !dumb;
}

void Output::Line(std::string_view text) {
  EndProgress();
  Write(stdout, text);
  Write(stdout, "\n");
}

void Output::JsonLine(const Json& value) {
  EndProgress();
  // Names that are not UTF-8 are replaced, never an exception.
  Write(stdout, value.dump(-1, ' ', false, Json::error_handler_t::replace));
  Write(stdout, "\n");
}

void Output::Facts(const std::vector<std::pair<std::string, std::string>>& facts) {
  size_t width = 0;
  for (const auto& [name, value] : facts) width = std::max(width, Width(name));
  for (const auto& [name, value] : facts) {
    Line(fmt::format("  {}{}  {}", name, std::string(width - Width(name), ' '), OneLine(value)));
  }
}

void Output::Table(std::vector<std::vector<std::string>> rows, std::string_view align) {
  std::vector<size_t> widths;
  for (auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = OneLine(row[i]);
      widths[i] = std::max(widths[i], Width(row[i]));
    }
  }
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string fill(widths[i] - Width(row[i]), ' ');
      if (i > 0) line += "  ";
      line += align[i] == 'l' ? row[i] + fill : fill + row[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    Line(line);
  }
}

void Output::Warning(std::string_view code, std::string_view message) {
  EndProgress();
  Write(stderr, fmt::format("deltawire: {}: {}\n", code, OneLine(message)));
}

void Output::Error(std::string_view code, std::string_view message) {
  Warning(code, message);
  if (json) JsonLine({{"error", {{"code", code}, {"message", message}}}});
}

std::string Output::Painted(std::string_view escape, std::string_view text) const {
  return colours_ ? fmt::format("\033[{}m{}\033[0m", escape, text) : std::string(text);
}

std::function<void(uint64_t, uint64_t)> Output::Progress(std::string label) {
  if (!bars_) return nullptr;
  using Clock = std::chrono::steady_clock;
  // shared_ptr: std::function copies what it holds.
  auto last = std::make_shared<Clock::time_point>();
  return [this, label = std::move(label), last](uint64_t done, uint64_t total) {
    const auto now = Clock::now();
    if (done < total && now - *last < std::chrono::milliseconds(100)) return;
    *last = now;
    const double share = total == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total);
    const size_t room = TerminalWidth();
    const size_t width = room > label.size() + 12 ? std::min<size_t>(40, room - label.size() - 12) : 0;
    const auto filled = static_cast<size_t>(share * static_cast<double>(width));
    Write(stderr, fmt::format("\r\033[K{} [{}{}] {:3.0f} %", label, std::string(filled, '#'),
                              std::string(width - filled, ' '), share * 100));
    bar_drawn_ = true;
  };
}

void Output::EndProgress() {
  if (std::exchange(bar_drawn_, false)) Write(stderr, "\r\033[K");
}

Status Output::Flush() {
  EndProgress();
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) {
    return Fail(Code::kIo, "can't write to standard output: {}", std::strerror(errno));
  }
  return {};
}

std::string CountText(uint64_t count) {
  std::string text = fmt::format("{}", count);
  for (size_t at = text.size(); at > 3;) text.insert(at -= 3, 1, ',');
  return text;
}

std::string BytesText(uint64_t bytes) {
  if (bytes < 1000) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  const char* const units[] = {"kB", "MB", "GB", "TB"};
  size_t unit = 0;
  for (value /= 1000; value >= 999.5 && unit < 3; value /= 1000) ++unit;
  return fmt::format("{:.3g} {}", value, units[unit]);
}

std::string ShareText(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  return fmt::format("{:.3g} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string AgeText(double seconds) {
  if (seconds < 0) return "in the future";
  const auto whole = static_cast<uint64_t>(seconds);
  if (whole < 120) return fmt::format("{} s", whole);
  if (whole < 7200) return fmt::format("{} min", whole / 60);
  if (whole < 172800) return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
  return fmt::format("{} d {} h", whole / 86400, whole / 3600 % 24);
}

std::string BytesPerChangeText(uint64_t bytes, uint64_t changed) {
  if (changed == 0) return "-";
  return fmt::format("{:.3f}", static_cast<double>(bytes) / static_cast<double>(changed));
}

Json RatioJson(uint64_t part, uint64_t whole) {
  if (whole == 0) return nullptr;
  return static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace deltawire::cli
