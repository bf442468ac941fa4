#pragma once
// Plain text in aligned columns.

#include <ostream>
#include <string>
#include <vector>

namespace troupe::train {

// Cells of one line each; what a peer sent is made harmless for a terminal (control characters
// become '?'). Columns that are empty in every row are left out.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header);
  // Columns of numbers: from `first` on, cells are aligned to the right.
  TextTable& numbers_from(std::size_t first);
  void add(std::vector<std::string> cells);  // one for each column
  bool empty() const { return rows_.empty(); }
  // Two spaces between columns, no spaces at the ends of lines.
  void print(std::ostream& out) const;
  std::string text() const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
  std::size_t numbers_from_;
};

// One line without control characters.
std::string printable(const std::string& text);

}  // namespace troupe::train
