#pragma once
// What a run tells a part of a program's own: named numbers, words and flags. They travel with the
// run, and every process that belongs to it makes its parts from the same ones.
//
//   explicit FocalLoss(const Arguments& arguments) : gamma_(arguments.number("gamma", 2)) {}
//
// A part reads its arguments in its constructor. One that it has not read then, and one of another
// kind than it asked for, ends the start of the run with its name: a slip of the pen is no default.

#include <cstdint>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "troupe/status.h"

namespace troupe::train {

using Argument = std::variant<bool, std::int64_t, double, std::string>;

// A value; not shared by threads.
class Arguments {
 public:
  using Values = std::map<std::string, Argument, std::less<>>;
  Arguments() = default;
  // {{"gamma", 1}, {"file", "words.txt"}}
  Arguments(std::initializer_list<Values::value_type> values) : values_(values) {}
  explicit Arguments(Values values) : values_(std::move(values)) {}

  // What has the name, else `otherwise`. A whole number is a number, too.
  double number(std::string_view name, double otherwise) const;
  std::int64_t integer(std::string_view name, std::int64_t otherwise) const;
  bool flag(std::string_view name, bool otherwise) const;
  std::string text(std::string_view name, std::string_view otherwise) const;

  const Values& values() const { return values_; }
  // Ok where all were read as what they are; else kInvalidArgument with the first that was not.
  Status used() const;

 private:
  const Argument* find(std::string_view name) const;
  void is_no(std::string_view name, std::string_view kind) const;

  Values values_;
  mutable std::set<std::string, std::less<>> read_;
  mutable Status problem_;
};

}  // namespace troupe::train
