#pragma once
// Values as text: str(), repr(), json.dumps(), and HTML.

#include <string>
#include <string_view>

#include "train/jinja/value.h"

namespace troupe::train::jinja {

// Each value that is printed is a step of work: a small list that holds another one many times may
// be a large text.
std::string str(Heap& heap, const Value& value);
std::string repr(Heap& heap, const Value& value);
// For the message of a failure: its beginning, where it is long.
std::string repr_in_message(const Value& value);
std::string quoted(std::string_view text);  // repr of a text
std::string escape_html(std::string_view text);

struct JsonStyle {
  bool ascii = false, sorted = false;
  bool lines = false;  // each item on a line of its own, behind `indent` for each level
  std::string indent, between = ", ", after_key = ": ";
};
std::string to_json(Heap& heap, const Value& value, const JsonStyle& style);

}  // namespace troupe::train::jinja
