#pragma once
// What tools print for people: tables with aligned columns, times, ages, amounts in use.

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "runtime/wire/types.h"

namespace troupe::tools {

// Cells of one line each; what a peer sent is made harmless for a terminal (control characters
// become '?'). Columns that are empty in every row are left out.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  void add(std::vector<std::string> cells);  // one for each column
  bool empty() const { return rows_.empty(); }
  // Left-aligned, two spaces between columns, no spaces at the ends of lines.
  void print(std::ostream& out) const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

// One line without control characters.
std::string printable(const std::string& text);
// "12s", "3m 5s", "2h 10m", "4d 3h"
std::string format_age(std::int64_t microseconds);
// "1.5/2" of an amount in use and the total: free of the total for people.
std::string format_use(std::string_view resource, std::int64_t used, std::int64_t total);

}  // namespace troupe::tools
