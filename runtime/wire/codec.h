#pragma once
// Described structs (fields.h) to and from Cap'n Proto messages. Private to this folder: it shows
// Cap'n Proto.
//
// Structs are read and written by the readers and builders that Cap'n Proto's generated code is
// made of (capnp::_), with offsets from layout.h instead of its compiler. They check every pointer
// against the message, count what is read, and give zero bits and null pointers for what is not
// there.

#include <capnp/any.h>
#include <capnp/message.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/base/limits.h"
#include "runtime/base/status.h"
#include "runtime/wire/layout.h"
#include "runtime/wire/types.h"

namespace troupe::wire::codec {

using StructBuilder = capnp::_::StructBuilder;
using StructReader = capnp::_::StructReader;
using PointerBuilder = capnp::_::PointerBuilder;
using PointerReader = capnp::_::PointerReader;
template <typename T>
using ListOf = capnp::_::PointerHelpers<capnp::List<T>>;

// --- frames --------------------------------------------------------------------------------------

// Runs `read` on the root of the message in `frame`: one message, whole, nothing after it, within
// the limits. Whatever is wrong with the bytes ends as kProtocol, naming `what`.
Status decode_frame(std::span<const std::byte> frame, const char* what,
                    const std::function<void(StructReader)>& read);

// The message as bytes.
Bytes to_bytes(capnp::MessageBuilder& message);

// Words for a first segment that holds a message with `payload_bytes` in its large field, so that
// it is neither moved nor split.
inline capnp::uint segment_words(std::size_t payload_bytes) {
  return static_cast<capnp::uint>(128 + payload_bytes / 8 + 1);
}

// --- what is refused -----------------------------------------------------------------------------

// Each throws what ends decode_frame with kProtocol.
[[noreturn]] void refuse_value(FieldName field, unsigned value);
[[noreturn]] void refuse_count(FieldName field, std::size_t count);
[[noreturn]] void refuse_key_twice(FieldName field);
[[noreturn]] void refuse_message(unsigned number);
[[noreturn]] void refuse_empty_message();

// --- a failure -----------------------------------------------------------------------------------

// What of a Status travels; the words lie in the status, or in the frame.
struct StatusShape {
  std::int32_t code = 0;
  std::string_view message;
  std::vector<std::pair<std::string_view, std::string_view>> context;
  TROUPE_WIRE(StatusShape, code, message, context);
};

// --- writing -------------------------------------------------------------------------------------

template <typename T>
void write_struct(StructBuilder out, const T& value);

template <typename T>
capnp::_::StructSize struct_size() {
  return {kLayout<T>.data_words * capnp::WORDS, kLayout<T>.pointers * capnp::POINTERS};
}

template <typename T>
void write_new_struct(PointerBuilder out, const T& value) {
  write_struct(out.initStruct(struct_size<T>()), value);
}

template <typename Values>
void write_structs(PointerBuilder out, const Values& values) {
  auto list = out.initStructList(static_cast<capnp::uint>(values.size()) * capnp::ELEMENTS,
                                 struct_size<typename Values::value_type>());
  capnp::uint i = 0;
  for (const auto& value : values) {
    write_struct(list.getStructElement(i++ * capnp::ELEMENTS), value);
  }
}

// Of a whole string: Cap'n Proto looks for its zero byte in debug builds.
void write_pointer(PointerBuilder out, std::string_view value);
inline void write_pointer(PointerBuilder out, const Bytes& value) {
  out.setBlob<capnp::Data>({reinterpret_cast<const kj::byte*>(value.data()), value.size()});
}
void write_failure(PointerBuilder out, const Status& value);
inline void write_pointer(PointerBuilder out, const Status& value) {
  if (!value.ok()) write_failure(out, value);
}
void write_pointer(PointerBuilder out, const std::vector<std::string>& values);
template <Number T>
void write_pointer(PointerBuilder out, const std::vector<T>& values) {
  auto list = ListOf<T>::init(out, static_cast<capnp::uint>(values.size()));
  for (capnp::uint i = 0; i < values.size(); ++i) list.set(i, values[i]);
}
template <Described T>
void write_pointer(PointerBuilder out, const std::vector<T>& values) {
  write_structs(out, values);
}
template <typename V, typename Compare>
void write_pointer(PointerBuilder out, const std::map<std::string, V, Compare>& values) {
  write_structs(out, values);
}
template <Described T>
void write_pointer(PointerBuilder out, const std::optional<T>& value) {
  if (value) write_new_struct(out, *value);
}
template <Described T>
void write_pointer(PointerBuilder out, const T& value) {
  if constexpr (kNullWhenDefault<T>) {
    if (value == T()) return;
  }
  write_new_struct(out, value);
}

template <Number T>
void write_field(StructBuilder out, std::uint32_t place, const T& value,
                 std::int64_t wire_default) {
  using Raw = NumberOnWire<T>;
  out.setDataField<Raw>(capnp::assumeDataOffset(place), static_cast<Raw>(value),
                        static_cast<capnp::_::Mask<Raw>>(wire_default));
}
template <typename T>
void write_field(StructBuilder out, std::uint32_t place, const T& value, std::int64_t) {
  write_pointer(out.getPointerField(capnp::assumePointerOffset(place)), value);
}

template <typename T, auto... Members, std::size_t... I>
void write_fields([[maybe_unused]] StructBuilder out, const T& value, Fields<Members...>,
                  std::index_sequence<I...>) {
  (write_field(out, kLayout<T>.places[I], value.*Members, kWireDefault<Members>), ...);
}
template <typename T>
void write_struct(StructBuilder out, const T& value) {
  write_fields(out, value, typename Description<T>::Wire(), field_indices<T>());
}

// --- reading -------------------------------------------------------------------------------------

// Into a value that is as it was made. What is not in the message, since an earlier version wrote
// it, reads as null or as zero bits. `field` is for errors.

template <typename T>
void read_struct(StructReader in, T& value);

template <typename List>
std::size_t checked_count(const List& list, FieldName field) {
  const std::size_t count = list.size();
  if (count > limits::kWireListCountMax) refuse_count(field, count);
  return count;
}

void read_pointer(PointerReader in, std::string_view& value, FieldName);  // into the frame
void read_pointer(PointerReader in, std::string& value, FieldName);
inline void read_pointer(PointerReader in, Bytes& value, FieldName) {
  const auto data = in.getBlob<capnp::Data>(nullptr, 0 * capnp::BYTES);
  const auto* const begin = reinterpret_cast<const std::byte*>(data.begin());
  value.assign(begin, begin + data.size());
}
void read_pointer(PointerReader in, Status& value, FieldName field);
void read_pointer(PointerReader in, std::vector<std::string>& values, FieldName field);
template <Number T>
void read_pointer(PointerReader in, std::vector<T>& values, FieldName field) {
  const auto list = ListOf<T>::get(in);
  values.reserve(checked_count(list, field));
  for (const T value : list) values.push_back(value);
}
template <Described T>
void read_pointer(PointerReader in, std::vector<T>& values, FieldName field) {
  const auto list = in.getList(capnp::ElementSize::INLINE_COMPOSITE, nullptr);
  values.resize(checked_count(list, field));
  for (capnp::uint i = 0; i < values.size(); ++i) {
    read_struct(list.getStructElement(i * capnp::ELEMENTS), values[i]);
  }
}
template <typename V, typename Compare>
void read_pointer(PointerReader in, std::map<std::string, V, Compare>& values, FieldName field) {
  const auto list = in.getList(capnp::ElementSize::INLINE_COMPOSITE, nullptr);
  const std::size_t count = checked_count(list, field);
  for (capnp::uint i = 0; i < count; ++i) {
    std::pair<std::string, V> pair;
    read_struct(list.getStructElement(i * capnp::ELEMENTS), pair);
    if (!values.insert(std::move(pair)).second) refuse_key_twice(field);
  }
}
template <Described T>
void read_pointer(PointerReader in, std::optional<T>& value, FieldName) {
  if (!in.isNull()) read_struct(in.getStruct(nullptr), value.emplace());
}
template <Described T>
void read_pointer(PointerReader in, T& value, FieldName) {
  read_struct(in.getStruct(nullptr), value);
}

template <Number T>
void read_field(StructReader in, std::uint32_t place, T& value, std::int64_t wire_default,
                FieldName field) {
  using Raw = NumberOnWire<T>;
  const auto number = in.getDataField<Raw>(capnp::assumeDataOffset(place),
                                           static_cast<capnp::_::Mask<Raw>>(wire_default));
  if constexpr (std::is_enum_v<T>) {
    if (number > static_cast<Raw>(last_value(T()))) refuse_value(field, number);
  }
  value = static_cast<T>(number);
}
template <typename T>
void read_field(StructReader in, std::uint32_t place, T& value, std::int64_t, FieldName field) {
  read_pointer(in.getPointerField(capnp::assumePointerOffset(place)), value, field);
}

template <typename T, auto... Members, std::size_t... I>
void read_fields([[maybe_unused]] StructReader in, T& value, Fields<Members...>,
                 std::index_sequence<I...>) {
  (read_field(in, kLayout<T>.places[I], value.*Members, kWireDefault<Members>,
              &field_name<Members>),
   ...);
}
template <typename T>
void read_struct(StructReader in, T& value) {
  read_fields(in, value, typename Description<T>::Wire(), field_indices<T>());
}

// --- messages of a family ------------------------------------------------------------------------

// A family's message is a struct of a number and the pointer to the message with that number.
using MessageNumber = std::uint16_t;

template <typename Family>
Bytes encode(const Family& message, capnp::MessageBuilder& builder) {
  auto root = capnp::_::PointerHelpers<capnp::AnyPointer>::getInternalBuilder(
                  builder.getRoot<capnp::AnyPointer>())
                  .initStruct({1 * capnp::WORDS, 1 * capnp::POINTERS});
  root.setDataField<MessageNumber>(0 * capnp::ELEMENTS, message.index());
  visit([&](const auto& m) { write_new_struct(root.getPointerField(0 * capnp::POINTERS), m); },
        message);
  return to_bytes(builder);
}

template <typename Message, typename Family>
void read_alternative(StructReader in, Family& message) {
  message = Message{};
  read_struct(in, *get_if<Message>(&message));
}

template <typename Family, std::size_t... I>
void read_message(StructReader root, Family& message, std::index_sequence<I...>) {
  static constexpr void (*kReads[])(StructReader, Family&) = {
      &read_alternative<std::variant_alternative_t<I, Family>, Family>...};
  const auto number = root.getDataField<MessageNumber>(0 * capnp::ELEMENTS);
  if (number >= sizeof...(I)) refuse_message(number);
  const PointerReader pointer = root.getPointerField(0 * capnp::POINTERS);
  if (pointer.isNull()) refuse_empty_message();
  kReads[number](pointer.getStruct(nullptr), message);
}

// `what`, for errors: "control message". After an error there is anything in `message`.
template <typename Family>
Status decode(std::span<const std::byte> frame, const char* what, Family& message) {
  return decode_frame(frame, what, [&](StructReader root) {
    read_message(root, message, std::make_index_sequence<std::variant_size_v<Family>>());
  });
}

}  // namespace troupe::wire::codec
