#pragma once
// The parts of the table that find_filter searches.

#include <span>
#include <string_view>

#include "train/jinja/value.h"

namespace troupe::train::jinja {

struct Filter {
  std::string_view name;
  Native native;
};
std::span<const Filter> text_filters();
std::span<const Filter> sequence_filters();

// What jinja2's filters take for a text: any value, printed.
std::string soft_text(Interpreter& in, const Value& value);

}  // namespace troupe::train::jinja
