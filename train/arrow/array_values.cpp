#include "train/arrow/array_values.h"

#include <cstring>
#include <string_view>
#include <utility>

namespace troupe::train {
namespace {

bool bit_at(const void* bits, std::int64_t at) {
  return (static_cast<const std::uint8_t*>(bits)[at / 8] >> (at % 8) & 1) != 0;
}

template <typename T>
T element(const ArrowArray& array, std::size_t buffer, std::int64_t at) {
  T value;
  std::memcpy(&value, static_cast<const char*>(array.buffers[buffer]) + at * sizeof(T), sizeof(T));
  return value;
}

class NullReader final : public ArrayReader {
 public:
  NullReader() { has_validity_ = false; }

 private:
  json::Value read(const ArrowArray&, std::int64_t) const override { return nullptr; }
};

class BoolReader final : public ArrayReader {
  json::Value read(const ArrowArray& array, std::int64_t at) const override {
    return bit_at(array.buffers[1], at);
  }
};

template <typename Stored, typename Shown>
class NumberReader final : public ArrayReader {
  json::Value read(const ArrowArray& array, std::int64_t at) const override {
    return static_cast<Shown>(element<Stored>(array, 1, at));
  }
};

template <typename Offset>
class TextReader final : public ArrayReader {
  json::Value read(const ArrowArray& array, std::int64_t at) const override {
    const auto begin = element<Offset>(array, 1, at), end = element<Offset>(array, 1, at + 1);
    if (begin == end) return json::Value(std::string_view());  // there may be no buffer
    return json::Value(std::string_view(static_cast<const char*>(array.buffers[2]) + begin,
                                        static_cast<std::size_t>(end - begin)));
  }
};

// Short texts lie in the view itself, others in one of several buffers.
class TextViewReader final : public ArrayReader {
  struct View {
    std::int32_t size;
    char prefix[4];
    std::int32_t buffer;
    std::int32_t offset;
  };
  static_assert(sizeof(View) == 16);
  json::Value read(const ArrowArray& array, std::int64_t at) const override {
    const auto view = element<View>(array, 1, at);
    const auto size = static_cast<std::size_t>(view.size);
    constexpr std::size_t kInlineMax = 12;
    const char* text = size <= kInlineMax
                           ? static_cast<const char*>(array.buffers[1]) + at * 16 + 4
                           : static_cast<const char*>(array.buffers[2 + view.buffer]) + view.offset;
    return json::Value(std::string_view(text, size));
  }
};

class ListReader : public ArrayReader {
 public:
  explicit ListReader(std::unique_ptr<ArrayReader> items) : items_(std::move(items)) {}

 protected:
  json::Value list(const ArrowArray& array, std::int64_t begin, std::int64_t end) const {
    json::Array out;
    out.reserve(static_cast<std::size_t>(end - begin));
    for (std::int64_t i = begin; i < end; ++i) out.push_back(items_->value(*array.children[0], i));
    return out;
  }

 private:
  const std::unique_ptr<ArrayReader> items_;
};

template <typename Offset>
class OffsetListReader final : public ListReader {
  using ListReader::ListReader;
  json::Value read(const ArrowArray& array, std::int64_t at) const override {
    return list(array, element<Offset>(array, 1, at), element<Offset>(array, 1, at + 1));
  }
};

class FixedListReader final : public ListReader {
 public:
  FixedListReader(std::unique_ptr<ArrayReader> items, std::int64_t size)
      : ListReader(std::move(items)), size_(size) {}

 private:
  json::Value read(const ArrowArray& array, std::int64_t at) const override {
    return list(array, at * size_, (at + 1) * size_);
  }
  const std::int64_t size_;
};

class StructReader final : public ArrayReader {
 public:
  explicit StructReader(const ArrowSchema& schema) {
    for (std::int64_t i = 0; i < schema.n_children; ++i) {
      const ArrowSchema& child = *schema.children[i];
      members_.emplace_back(child.name ? child.name : "", make_array_reader(child));
    }
  }

 private:
  json::Value read(const ArrowArray& array, std::int64_t at) const override {
    json::Object out;
    out.reserve(members_.size());
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const auto& [name, reader] = members_[i];
      // A structure's rows are its members' own, from its offset on.
      if (reader) out[name] = reader->value(*array.children[i], at);
    }
    return out;
  }
  std::vector<std::pair<std::string, std::unique_ptr<ArrayReader>>> members_;
};

template <typename Index>
class DictionaryReader final : public ArrayReader {
 public:
  explicit DictionaryReader(std::unique_ptr<ArrayReader> values) : values_(std::move(values)) {}

 private:
  json::Value read(const ArrowArray& array, std::int64_t at) const override {
    return values_->value(*array.dictionary,
                          static_cast<std::int64_t>(element<Index>(array, 1, at)));
  }
  const std::unique_ptr<ArrayReader> values_;
};

template <template <typename> class Made, typename... Arguments>
std::unique_ptr<ArrayReader> of_index_type(char format, Arguments&&... arguments) {
  const auto make = [&]<typename Index>(Index) -> std::unique_ptr<ArrayReader> {
    return std::make_unique<Made<Index>>(std::forward<Arguments>(arguments)...);
  };
  switch (format) {
    case 'c':
      return make(std::int8_t());
    case 'C':
      return make(std::uint8_t());
    case 's':
      return make(std::int16_t());
    case 'S':
      return make(std::uint16_t());
    case 'i':
      return make(std::int32_t());
    case 'I':
      return make(std::uint32_t());
    case 'l':
      return make(std::int64_t());
    case 'L':
      return make(std::uint64_t());
    default:
      return nullptr;
  }
}

template <typename Stored>
using IntegerReader =
    NumberReader<Stored, std::conditional_t<std::is_signed_v<Stored>, std::int64_t, std::uint64_t>>;

std::unique_ptr<ArrayReader> make_list_reader(const ArrowSchema& schema, std::string_view format) {
  if (schema.n_children != 1) return nullptr;
  auto items = make_array_reader(*schema.children[0]);
  if (!items) return nullptr;
  if (format == "+l") return std::make_unique<OffsetListReader<std::int32_t>>(std::move(items));
  if (format == "+L") return std::make_unique<OffsetListReader<std::int64_t>>(std::move(items));
  if (!format.starts_with("+w:")) return nullptr;
  return std::make_unique<FixedListReader>(std::move(items), std::atoll(format.data() + 3));
}

}  // namespace

json::Value ArrayReader::value(const ArrowArray& array, std::int64_t row) const {
  const std::int64_t at = array.offset + row;
  if (has_validity_ && array.n_buffers > 0 && array.buffers[0] && !bit_at(array.buffers[0], at))
    return nullptr;
  return read(array, at);
}

std::unique_ptr<ArrayReader> make_array_reader(const ArrowSchema& schema) {
  const std::string_view format = schema.format;
  if (schema.dictionary) {
    auto values = make_array_reader(*schema.dictionary);
    if (!values || format.size() != 1) return nullptr;
    return of_index_type<DictionaryReader>(format[0], std::move(values));
  }
  if (format == "u") return std::make_unique<TextReader<std::int32_t>>();
  if (format == "U") return std::make_unique<TextReader<std::int64_t>>();
  if (format == "vu") return std::make_unique<TextViewReader>();
  if (format == "n") return std::make_unique<NullReader>();
  if (format == "b") return std::make_unique<BoolReader>();
  if (format == "f") return std::make_unique<NumberReader<float, double>>();
  if (format == "g") return std::make_unique<NumberReader<double, double>>();
  if (format == "+s") return std::make_unique<StructReader>(schema);
  if (format.starts_with("+")) return make_list_reader(schema, format);
  return format.size() == 1 ? of_index_type<IntegerReader>(format[0]) : nullptr;
}

}  // namespace troupe::train
