#pragma once
// The Cap'n Proto schema of described structs (troupe/detail/wire_fields.h), as text.

#include <fmt/format.h>

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "runtime/wire/codec.h"

namespace troupe::wire {

class SchemaText {
 public:
  // The union of a family's messages, and every struct that they hold.
  template <typename Family>
  void add_family(std::string_view name) {
    add_family<Family>(name, std::make_index_sequence<std::variant_size_v<Family>>());
  }
  std::string text() const { return text_; }

  // What has been added, by name.
  struct Struct {
    std::vector<std::pair<std::string, std::uint32_t>> places;
    std::uint32_t data_words = 0;
    std::uint32_t pointers = 0;
  };
  const std::map<std::string, Struct>& structs() const { return structs_; }

 private:
  template <typename T>
  struct Of {};

  // What the parameter's type is called in a schema; a struct is added where it is new.
  static std::string name(Of<bool>) { return "Bool"; }
  static std::string name(Of<std::string>) { return "Text"; }
  static std::string name(Of<std::string_view>) { return "Text"; }
  static std::string name(Of<Bytes>) { return "Data"; }
  std::string name(Of<Status>) { return add("Status", Of<codec::StatusShape>()); }
  template <codec::Number T>
  static std::string name(Of<T>) {
    using Raw = codec::NumberOnWire<T>;
    return fmt::format("{}Int{}", std::is_signed_v<Raw> ? "" : "U", 8 * sizeof(Raw));
  }
  template <typename T>
  std::string name(Of<std::optional<T>>) {
    return name(Of<T>());
  }
  template <typename T>
  std::string name(Of<std::vector<T>>) {
    return "List(" + name(Of<T>()) + ")";
  }
  template <typename V, typename Compare>
  std::string name(Of<std::map<std::string, V, Compare>>) {
    return name(Of<std::vector<std::pair<std::string, V>>>());
  }
  template <typename Tag>
  std::string name(Of<Id<Tag>> id) {
    return add("Id", id);
  }
  template <typename A, typename B>
  std::string name(Of<std::pair<A, B>> pair) {
    return add("PairOf" + name(Of<A>()) + name(Of<B>()), pair);
  }
  template <typename T>
  requires requires { typename T::Wire; }
  std::string name(Of<T> type) { return add(own_name<T>(), type); }

  template <typename T>
  static std::string own_name() {
    return last_name(__PRETTY_FUNCTION__);  // "… [with T = troupe::wire::Call; …]"
  }
  static std::string last_name(std::string_view name) {
    name = name.substr(0, name.find_first_of(";]", name.find("T = ")));
    return std::string(name.substr(name.rfind(':') + 1));
  }

  // "saved_state_node": "savedStateNode"; "CallReply": "callReply".
  static std::string field_style(std::string_view name) {
    std::string result;
    for (std::size_t i = 0; i < name.size(); ++i) {
      if (name[i] == '_') continue;
      const bool upper = i > 0 && name[i - 1] == '_';
      const bool lower = i == 0;
      const int letter = static_cast<unsigned char>(name[i]);
      result += static_cast<char>(upper   ? std::toupper(letter)
                                  : lower ? std::tolower(letter)
                                          : letter);
    }
    return result;
  }

  template <typename T>
  std::string add(const std::string& name, Of<T>) {
    if (structs_.contains(name)) return name;
    Struct& added = structs_[name];
    added.data_words = codec::kLayout<T>.data_words;
    added.pointers = codec::kLayout<T>.pointers;
    std::string fields;
    add_fields<T>(added, fields, typename codec::Description<T>::Wire());
    text_ += fmt::format("\nstruct {} {{\n{}}}\n", name, fields);
    return name;
  }
  template <typename T, auto... Members>
  void add_fields(Struct& added, std::string& fields, Fields<Members...>) {
    [[maybe_unused]] std::size_t number = 0;
    (add_field<Members>(added, fields, number, codec::kLayout<T>.places[number]), ...);
  }
  template <auto Member>
  void add_field(Struct& added, std::string& fields, std::size_t& number, std::uint32_t place) {
    append_field(added, fields, number++, place, codec::name_of(&codec::field_name<Member>),
                 name(Of<codec::FieldType<Member>>()), kWireDefault<Member>);
  }
  // What does not depend on the field's type is compiled once: there are seven hundred fields.
  static void append_field(Struct& added, std::string& fields, std::size_t number,
                           std::uint32_t place, std::string_view full, const std::string& type,
                           std::int64_t initial) {
    const std::string field = field_style(full.substr(full.rfind(':') + 1));
    added.places.emplace_back(field, place);
    fields += fmt::format("  {} @{} :{}", field, number, type);
    if (initial != 0) fields += fmt::format(" = {}", initial);
    fields += ";\n";
  }

  template <typename Family, std::size_t... I>
  void add_family(std::string_view family, std::index_sequence<I...>) {
    std::string fields;
    (append_alternative(fields, own_name<std::variant_alternative_t<I, Family>>(), I,
                        name(Of<std::variant_alternative_t<I, Family>>())),
     ...);
    text_ += fmt::format("\nstruct {} {{\n  union {{\n{}  }}\n}}\n", family, fields);
  }

  static void append_alternative(std::string& fields, const std::string& own, std::size_t number,
                                 const std::string& type) {
    fields += fmt::format("    {} @{} :{};\n", field_style(own), number, type);
  }

  std::string text_;
  std::map<std::string, Struct> structs_;
};

}  // namespace troupe::wire
