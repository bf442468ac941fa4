#include "train/report/text_table.h"

#include <algorithm>
#include <sstream>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

// Columns that a UTF-8 text takes, a column for each character.
std::size_t text_width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

TextTable::TextTable(std::vector<std::string> header)
    : header_(std::move(header)), numbers_from_(header_.size()) {}

TextTable& TextTable::numbers_from(std::size_t first) {
  numbers_from_ = first;
  return *this;
}

void TextTable::add(std::vector<std::string> cells) {
  TROUPE_CHECK(cells.size() == header_.size());
  for (auto& cell : cells) cell = printable(cell);
  rows_.push_back(std::move(cells));
}

void TextTable::print(std::ostream& out) const {
  std::vector<std::size_t> widths(header_.size());
  std::vector<bool> used(header_.size());
  for (std::size_t c = 0; c < header_.size(); ++c) {
    widths[c] = text_width(header_[c]);
    for (const auto& row : rows_) {
      widths[c] = std::max(widths[c], text_width(row[c]));
      if (!row[c].empty()) used[c] = true;
    }
  }
  const auto print_line = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      if (!used[c]) continue;
      const std::string filling(widths[c] - text_width(cells[c]), ' ');
      line += (c < numbers_from_ ? cells[c] + filling : filling + cells[c]) + "  ";
    }
    while (line.ends_with(' ')) line.pop_back();
    out << line << "\n";
  };
  print_line(header_);
  for (const auto& row : rows_) print_line(row);
}

std::string TextTable::text() const {
  std::ostringstream out;
  print(out);
  return out.str();
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

}  // namespace troupe::train
