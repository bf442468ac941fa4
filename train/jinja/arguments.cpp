#include "train/jinja/arguments.h"

#include <algorithm>

#include "train/jinja/failure.h"

namespace troupe::train::jinja {

Parameters::Parameters(const char* function, Arguments& arguments,
                       std::initializer_list<const char*> names, std::size_t required)
    : function_(function), values_(names.size()), given_(names.size()) {
  if (arguments.positional.size() > names.size()) {
    fail("TypeError", "{}() takes at most {} arguments ({} given)", function, names.size(),
         arguments.positional.size());
  }
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
    values_[i] = arguments.positional[i];
    given_[i] = true;
  }
  for (const auto& [name, value] : arguments.named) {
    const auto at = static_cast<std::size_t>(
        std::find(names.begin(), names.end(), std::string_view(name)) - names.begin());
    if (at == names.size())
      fail("TypeError", "{}() got an unexpected keyword argument '{}'", function, name);
    if (given_[at]) fail("TypeError", "{}() got multiple values for argument '{}'", function, name);
    values_[at] = value;
    given_[at] = true;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (!given_[i])
      fail("TypeError", "{}() missing required argument '{}'", function, *(names.begin() + i));
  }
}

const std::string& Parameters::text(std::size_t i) const {
  if (!values_[i].is(Kind::kText))
    fail("TypeError", "{}() argument must be str, not {}", function_, type_name(values_[i]));
  return values_[i].text();
}

Int Parameters::integer(std::size_t i, Int otherwise) const {
  if (!given_[i]) return otherwise;
  if (values_[i].is(Kind::kUndefined)) fail_undefined(values_[i]);
  if (!values_[i].is_integer()) {
    fail("TypeError", "'{}' object cannot be interpreted as an integer", type_name(values_[i]));
  }
  return std::clamp<Int>(values_[i].as_int(), -(Int{1} << 62), Int{1} << 62);
}

bool Parameters::flag(std::size_t i, bool otherwise) const {
  return given_[i] ? is_true(values_[i]) : otherwise;
}

}  // namespace troupe::train::jinja
