#include "troupe/train/arguments.h"

#include <fmt/format.h>

#include "train/parts/arguments_json.h"

namespace troupe::train {

const Argument* Arguments::find(std::string_view name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) return nullptr;
  read_.emplace(name);
  return &found->second;
}

void Arguments::is_no(std::string_view name, std::string_view kind) const {
  if (problem_.ok())
    problem_ = error(Code::kInvalidArgument, "the argument \"{}\" is no {}", name, kind);
}

double Arguments::number(std::string_view name, double otherwise) const {
  const Argument* value = find(name);
  if (!value) return otherwise;
  if (const auto* number = std::get_if<double>(value)) return *number;
  if (const auto* whole = std::get_if<std::int64_t>(value)) return static_cast<double>(*whole);
  is_no(name, "number");
  return otherwise;
}

std::int64_t Arguments::integer(std::string_view name, std::int64_t otherwise) const {
  const Argument* value = find(name);
  if (!value) return otherwise;
  if (const auto* whole = std::get_if<std::int64_t>(value)) return *whole;
  is_no(name, "whole number");
  return otherwise;
}

bool Arguments::flag(std::string_view name, bool otherwise) const {
  const Argument* value = find(name);
  if (!value) return otherwise;
  if (const auto* flag = std::get_if<bool>(value)) return *flag;
  is_no(name, "flag");
  return otherwise;
}

std::string Arguments::text(std::string_view name, std::string_view otherwise) const {
  const Argument* value = find(name);
  if (!value) return std::string(otherwise);
  if (const auto* text = std::get_if<std::string>(value)) return *text;
  is_no(name, "text");
  return std::string(otherwise);
}

Status Arguments::used() const {
  if (!problem_.ok()) return problem_;
  for (const auto& [name, value] : values_) {
    if (!read_.contains(name))
      return error(Code::kInvalidArgument, "its constructor reads no argument \"{}\"", name);
  }
  return {};
}

json::Object to_json(const Arguments& arguments) {
  json::Object object;
  for (const auto& [name, value] : arguments.values())
    std::visit([&object, &key = name](const auto& one) { object[key] = one; }, value);
  return object;
}

Result<Arguments> arguments_from_json(const json::Value& value) {
  if (!value.is_object())
    return error(Code::kInvalidArgument, "a part's arguments are an object of JSON");
  Arguments::Values values;
  for (const auto& member : value.get_object()) {
    const json::Value& one = member.value();
    Argument& argument = values[std::string(member.key())];
    if (one.is_bool()) {
      argument = one.get_bool();
    } else if (one.is_int64()) {
      argument = one.get_int64();
    } else if (one.is_double()) {
      argument = one.get_double();
    } else if (one.is_string()) {
      argument = std::string(one.get_string());
    } else {
      return error(Code::kInvalidArgument,
                   "the argument \"{}\" is neither a number nor a text nor a flag",
                   std::string_view(member.key()));
    }
  }
  return Arguments(std::move(values));
}

}  // namespace troupe::train
