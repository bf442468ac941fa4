#include "tools/commands/table.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "scheduler/policy/resources.h"

namespace troupe::tools {
namespace {

// Columns that a UTF-8 text takes, a column for each character.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

void Table::add(std::vector<std::string> cells) {
  TROUPE_CHECK(cells.size() == header_.size());
  for (auto& cell : cells) cell = printable(cell);
  rows_.push_back(std::move(cells));
}

void Table::print(std::ostream& out) const {
  std::vector<std::size_t> widths(header_.size());
  std::vector<bool> used(header_.size());
  for (std::size_t c = 0; c < header_.size(); ++c) {
    widths[c] = width(header_[c]);
    for (const auto& row : rows_) {
      widths[c] = std::max(widths[c], width(row[c]));
      if (!row[c].empty()) used[c] = true;
    }
  }
  const auto print_line = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      if (!used[c]) continue;
      line += cells[c] + std::string(widths[c] - width(cells[c]) + 2, ' ');
    }
    while (line.ends_with(' ')) line.pop_back();
    out << line << "\n";
  };
  print_line(header_);
  for (const auto& row : rows_) print_line(row);
}

std::string printable(const std::string& text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n' || c == '\t') {
      line += ' ';
    } else {
      line += byte < 0x20 || byte == 0x7f ? '?' : c;
    }
  }
  return line;
}

std::string format_age(std::int64_t microseconds) {
  const std::int64_t seconds = std::max<std::int64_t>(0, microseconds / 1'000'000);
  if (seconds < 60) return fmt::format("{}s", seconds);
  if (seconds < 3600) return fmt::format("{}m {}s", seconds / 60, seconds % 60);
  if (seconds < 86400) return fmt::format("{}h {}m", seconds / 3600, seconds / 60 % 60);
  return fmt::format("{}d {}h", seconds / 86400, seconds / 3600 % 24);
}

std::string format_use(std::string_view resource, std::int64_t used, std::int64_t total) {
  return fmt::format("{}/{}", scheduler::format_amount(resource, used),
                     scheduler::format_amount(resource, total));
}

}  // namespace troupe::tools
