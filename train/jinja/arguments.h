#pragma once
// The arguments of a built-in function by the names of its parameters.

#include <initializer_list>
#include <string>
#include <vector>

#include "train/jinja/value.h"

namespace troupe::train::jinja {

class Parameters {
 public:
  // TypeError: more arguments than names, an unknown name, fewer than `required`.
  Parameters(const char* function, Arguments& arguments, std::initializer_list<const char*> names,
             std::size_t required = 0);

  bool has(std::size_t i) const { return given_[i]; }
  const Value& operator[](std::size_t i) const { return values_[i]; }  // None: not given
  bool is_none(std::size_t i) const { return values_[i].is_none(); }
  // TypeError where it is of another kind.
  const std::string& text(std::size_t i) const;
  Int integer(std::size_t i, Int otherwise) const;
  bool flag(std::size_t i, bool otherwise) const;

 private:
  const char* function_;
  std::vector<Value> values_;
  std::vector<bool> given_;
};

}  // namespace troupe::train::jinja
