#include "runtime/base/python_json.h"

namespace troupe::json {
namespace {

struct PythonWriter {
  int indent;
  std::string out;

  // Members between brackets; `write(i)` writes the i-th.
  template <typename Write>
  void list(char open, char close, std::size_t count, int depth, const Write& write) {
    const auto newline = [&](int to) {
      out += '\n' + std::string(static_cast<std::size_t>(to), ' ');
    };
    out += open;
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0) out += indent > 0 ? "," : ", ";
      if (indent > 0) newline(indent * (depth + 1));
      write(i);
    }
    if (indent > 0 && count > 0) newline(indent * depth);
    out += close;
  }

  void node(const Value& value, int depth) {
    if (const auto* object = value.if_object()) {
      list('{', '}', object->size(), depth, [&](std::size_t i) {
        const auto& member = *(object->begin() + static_cast<std::ptrdiff_t>(i));
        out += write(Value(member.key())) + ": ";
        node(member.value(), depth + 1);
      });
    } else if (const auto* array = value.if_array()) {
      list('[', ']', array->size(), depth, [&](std::size_t i) { node((*array)[i], depth + 1); });
    } else if (const auto* number = value.if_double()) {
      out += python_float(*number);
    } else {
      out += write(value);
    }
  }
};

}  // namespace

std::string python_json(const Value& value, int indent) {
  PythonWriter writer{indent, {}};
  writer.node(value, 0);
  return std::move(writer.out);
}

}  // namespace troupe::json
