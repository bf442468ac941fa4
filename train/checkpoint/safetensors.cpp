#include "train/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>

#include "runtime/base/check.h"
#include "runtime/base/json.h"
#include "runtime/base/limits.h"
#include "runtime/base/sort_by.h"
#include "runtime/base/suggest.h"
#include "train/tensor/convert.h"

namespace troupe::train {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr std::size_t kPrefixBytes = 8;
constexpr std::string_view kMetadataKey = "__metadata__";
// serde_json's, which the reference implementation reads with.
constexpr std::size_t kHeaderDepthMax = 127;
// Hashed and written together, so that the bytes are still in the cache.
constexpr std::size_t kPieceBytes = 1u << 20;

struct Entry {
  StoredTensor tensor;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// A JSON number that is a non-negative integer.
std::optional<std::uint64_t> unsigned_integer(const json::Value& value) {
  if (value.is_uint64()) return value.get_uint64();
  if (value.is_int64() && value.get_int64() >= 0)
    return static_cast<std::uint64_t>(value.get_int64());
  return std::nullopt;
}

Result<Entry> parse_entry(std::string_view name, const json::Value& value) {
  const auto bad = [&](std::string_view what) {
    return error(Code::kInvalidArgument, "tensor '{}': {}", name, what);
  };
  Entry entry;
  entry.tensor.name = name;
  if (!value.is_object()) return bad("its entry is no object");
  const auto dtype = json::find_string(value, "dtype");
  if (!dtype) return bad("no \"dtype\"");
  const auto known = dtype_from_name(*dtype);
  if (!known) {
    return error(Code::kUnsupported,
                 "tensor '{}' has the type '{}', which is not supported; convert it to one of "
                 "F32, F16, BF16, F64, I64, I32, I16, I8, U8, BOOL",
                 name, *dtype);
  }
  entry.tensor.dtype = *known;
  const auto* shape = json::find(value, "shape");
  if (!shape || !shape->is_array()) return bad("no \"shape\" array");
  for (const auto& dimension : shape->get_array()) {
    const auto size = unsigned_integer(dimension);
    if (!size || *size > std::uint64_t(std::numeric_limits<std::int64_t>::max())) {
      return bad("a dimension of its shape is not a non-negative 63-bit integer");
    }
    entry.tensor.shape.push_back(static_cast<std::int64_t>(*size));
  }
  const auto* offsets = json::find(value, "data_offsets");
  if (!offsets || !offsets->is_array() || offsets->get_array().size() != 2) {
    return bad("no \"data_offsets\" of two numbers");
  }
  const auto begin = unsigned_integer(offsets->get_array()[0]);
  const auto end = unsigned_integer(offsets->get_array()[1]);
  if (!begin || !end) return bad("its data_offsets are not non-negative integers");
  entry.begin = *begin;
  entry.end = *end;
  return entry;
}

// The first of "dtype", "shape", "data_offsets" that stands twice in one tensor's entry of `text`,
// which is valid JSON; empty where there is none. The reference implementation refuses that, while
// of a tensor that stands twice it takes the last.
std::string_view repeated_field(std::string_view text) {
  constexpr std::string_view kFields[] = {"dtype", "shape", "data_offsets"};
  int depth = 0;
  bool in_metadata = false;
  bool seen[std::size(kFields)] = {};
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '{' || c == '[') {
      if (++depth == 2) std::fill(std::begin(seen), std::end(seen), false);
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c == '"') {
      const std::size_t begin = i + 1;
      for (i = begin; text[i] != '"'; ++i) i += text[i] == '\\';
      const auto name = text.substr(begin, i - begin);
      const auto next = text.find_first_not_of(" \t\r\n", i + 1);
      if (next == std::string_view::npos || text[next] != ':') continue;
      if (depth == 1) in_metadata = name == kMetadataKey;
      if (depth != 2 || in_metadata) continue;
      for (std::size_t f = 0; f < std::size(kFields); ++f) {
        if (name != kFields[f]) continue;
        if (seen[f]) return kFields[f];
        seen[f] = true;
      }
    }
  }
  return {};
}

// The header as JSON. Keys stand once in nearly all files: only others are read a second time.
Result<json::Value> parse_header(std::string_view text, const std::string& path) {
  json::ParseOptions options{.bytes_max = limits::kSafetensorsHeaderBytesMax,
                             .depth_max = kHeaderDepthMax};
  options.reject_duplicate_keys = true;
  if (auto strict = json::parse(text, path, options); strict.ok()) return strict;
  options.reject_duplicate_keys = false;
  auto value = TROUPE_TRY(json::parse(text, path, options));
  if (const auto field = repeated_field(text); !field.empty()) {
    return error(Code::kInvalidArgument, "{}: \"{}\" stands twice in the entry of a tensor", path,
                 field);
  }
  return value;
}

Result<Metadata> parse_metadata(const json::Value& value) {
  Metadata metadata;
  if (value.is_null()) return metadata;
  if (!value.is_object()) {
    return error(Code::kInvalidArgument, "\"__metadata__\" is no object");
  }
  for (const auto& member : value.get_object()) {
    if (!member.value().is_string()) {
      return error(Code::kInvalidArgument, "\"__metadata__\": the value of '{}' is no string",
                   std::string_view(member.key()));
    }
    metadata.emplace(std::string(member.key()), std::string(member.value().get_string()));
  }
  return metadata;
}

// Entries tile the data: each begins where the one before ends, and is as long as its type and
// shape say. Sorts by offset. Returns the end of the last.
Result<std::uint64_t> check_tiling(std::vector<Entry>& entries) {
  stable_sort_by(entries, [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  std::uint64_t end = 0;
  for (const Entry& entry : entries) {
    const auto& name = entry.tensor.name;
    if (entry.end < entry.begin) {
      return error(Code::kInvalidArgument, "tensor '{}': its data_offsets [{}, {}) are reversed",
                   name, entry.begin, entry.end);
    }
    if (entry.begin != end) {
      return error(Code::kInvalidArgument,
                   "tensor '{}' begins at byte {} of the data, the one before ends at {}: {}", name,
                   entry.begin, end, entry.begin < end ? "they overlap" : "there is a hole");
    }
    const auto bytes = tensor_bytes(entry.tensor.dtype, entry.tensor.shape);
    if (!bytes) return bytes.status().prefixed(fmt::format("tensor '{}'", name));
    if (*bytes != entry.end - entry.begin) {
      return error(Code::kInvalidArgument,
                   "tensor '{}': its shape and type make {} bytes, its data_offsets {}", name,
                   *bytes, entry.end - entry.begin);
    }
    end = entry.end;
  }
  return end;
}

Status check_length(const std::vector<Entry>& entries, std::uint64_t data_bytes,
                    std::uint64_t end) {
  if (data_bytes == end) return {};
  if (data_bytes > end) {
    return error(Code::kDataLoss,
                 "{} bytes follow the last tensor; the file is damaged or no safetensors file",
                 data_bytes - end);
  }
  const auto cut = std::find_if(entries.begin(), entries.end(),
                                [&](const Entry& entry) { return entry.end > data_bytes; });
  return error(Code::kDataLoss,
               "the file is cut off in tensor '{}': {} of {} bytes of data are there; copy or "
               "download it again",
               cut->tensor.name, data_bytes, end);
}

// What the first eight bytes say. `prefix`: as many of them as there are.
Result<std::uint64_t> header_size(std::span<const std::byte> prefix, std::uint64_t file_bytes,
                                  const std::string& path) {
  if (prefix.size() < kPrefixBytes) {
    return error(Code::kDataLoss, "{}: {} bytes are too few for a safetensors file", path,
                 prefix.size());
  }
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, prefix.data(), kPrefixBytes);
  if (header_bytes > limits::kSafetensorsHeaderBytesMax) {
    return error(Code::kInvalidArgument,
                 "{}: a header of {} bytes, the limit is {}; this is no safetensors file", path,
                 header_bytes, limits::kSafetensorsHeaderBytesMax);
  }
  if (header_bytes > file_bytes - kPrefixBytes) {
    return error(Code::kDataLoss, "{}: the file is cut off in its header ({} of {} bytes)", path,
                 file_bytes - kPrefixBytes, header_bytes);
  }
  return header_bytes;
}

// Parses the header and checks it against the size of the file.
Result<SafetensorsHeader> parse_layout(std::string_view text, std::uint64_t file_bytes,
                                       const std::string& path) {
  const auto value = TROUPE_TRY(parse_header(text, path));
  if (!value.is_object()) {
    return error(Code::kInvalidArgument, "{}: the header is no JSON object", path);
  }
  SafetensorsHeader header;
  std::vector<Entry> entries;
  for (const auto& member : value.get_object()) {
    const std::string_view name(member.key());
    if (name == kMetadataKey) {
      auto metadata = parse_metadata(member.value());
      if (!metadata) return metadata.status().prefixed(path);
      header.metadata = std::move(*metadata);
      continue;
    }
    auto entry = parse_entry(name, member.value());
    if (!entry) return entry.status().prefixed(path);
    entries.push_back(std::move(*entry));
  }
  header.data_begin = kPrefixBytes + text.size();
  const auto end = check_tiling(entries);
  if (!end) return end.status().prefixed(path);
  if (Status status = check_length(entries, file_bytes - header.data_begin, *end); !status) {
    return status.prefixed(path);
  }
  for (Entry& entry : entries) {
    header.tensors.push_back({std::move(entry.tensor.name), entry.tensor.dtype,
                              std::move(entry.tensor.shape), header.data_begin + entry.begin,
                              header.data_begin + entry.end});
  }
  stable_sort_by(header.tensors, [](const auto& a, const auto& b) { return a.name < b.name; });
  return header;
}

std::string header_text(const std::vector<StoredTensor>& tensors, const Metadata& metadata) {
  const auto quoted = [](std::string_view text) {
    return json::write(json::Value(boost::json::string_view(text.data(), text.size())));
  };
  std::string text = "{";
  const auto separate = [&] {
    if (text.size() > 1) text += ',';
  };
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    bool first = true;
    for (const auto& [key, value] : metadata) {
      if (!first) text += ',';
      text += quoted(key) + ":" + quoted(value);
      first = false;
    }
    text += '}';
  }
  std::uint64_t offset = 0;
  for (const auto& tensor : tensors) {
    const std::uint64_t end = offset + *tensor_bytes(tensor.dtype, tensor.shape);
    separate();
    text += fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        quoted(tensor.name), dtype_name(tensor.dtype),
                        join_numbers(tensor.shape, ","), offset, end);
    offset = end;
  }
  text += '}';
  text.append((kPrefixBytes - text.size() % kPrefixBytes) % kPrefixBytes, ' ');
  return text;
}

Status check_declared(const std::vector<StoredTensor>& tensors, const std::string& path) {
  const StoredTensor* previous = nullptr;
  for (const auto& tensor : tensors) {
    if (tensor.name == kMetadataKey) {
      return error(Code::kInvalidArgument, "{}: no tensor can be named '{}'", path, kMetadataKey);
    }
    const auto bytes = tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes) return bytes.status().prefixed(fmt::format("{}: tensor '{}'", path, tensor.name));
    if (previous && previous->name == tensor.name) {
      return error(Code::kInvalidArgument, "{}: the tensor '{}' was given twice", path,
                   tensor.name);
    }
    previous = &tensor;
  }
  return {};
}

}  // namespace

Result<std::vector<float>> StoredTensor::floats() const {
  std::vector<float> values(static_cast<std::size_t>(element_count()));
  TROUPE_RETURN_IF_ERROR(convert_to_float(data, dtype, values));
  return values;
}

std::int64_t StoredTensor::element_count() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

Result<std::uint64_t> tensor_bytes(DType dtype, std::span<const std::int64_t> shape) {
  std::uint64_t bytes = dtype_size(dtype);
  // Element count first, as the reference does: a zero beside huge dimensions may still overflow.
  std::uint64_t count = 1;
  for (const std::int64_t size : shape) {
    if (size < 0) return error(Code::kInvalidArgument, "a dimension is negative ({})", size);
    if (__builtin_mul_overflow(count, static_cast<std::uint64_t>(size), &count)) {
      return error(Code::kInvalidArgument, "the product of its shape [{}] overflows 64 bits",
                   join_numbers(shape));
    }
  }
  if (__builtin_mul_overflow(bytes, count, &bytes)) {
    return error(Code::kInvalidArgument, "its shape [{}] in bytes overflows 64 bits",
                 join_numbers(shape));
  }
  return bytes;
}

Result<SafetensorsFile> SafetensorsFile::open(FileSystem& files, const std::string& path) {
  std::shared_ptr<MappedFile> mapping = TROUPE_TRY(files.map(path));
  auto file = TROUPE_TRY(parse(mapping->bytes(), path));
  file.mapping_ = std::move(mapping);
  return file;
}

Result<SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> bytes, std::string path) {
  const auto header_bytes = TROUPE_TRY(
      header_size(bytes.first(std::min(bytes.size(), kPrefixBytes)), bytes.size(), path));
  const auto text = bytes.subspan(kPrefixBytes, header_bytes);
  auto header = TROUPE_TRY(
      parse_layout({reinterpret_cast<const char*>(text.data()), text.size()}, bytes.size(), path));
  SafetensorsFile file;
  for (auto& entry : header.tensors) {
    file.tensors_.push_back({std::move(entry.name), entry.dtype, std::move(entry.shape),
                             bytes.subspan(entry.begin, entry.end - entry.begin)});
  }
  file.metadata_ = std::move(header.metadata);
  file.path_ = std::move(path);
  return file;
}

Result<SafetensorsHeader> SafetensorsHeader::read(ReadableFile& file, const std::string& path) {
  std::array<std::byte, kPrefixBytes> prefix{};
  const auto there = std::span(prefix).first(std::min<std::uint64_t>(file.size(), kPrefixBytes));
  TROUPE_RETURN_IF_ERROR(file.read_at(0, there));
  const auto header_bytes = TROUPE_TRY(header_size(there, file.size(), path));
  std::string text(header_bytes, ' ');
  TROUPE_RETURN_IF_ERROR(file.read_at(kPrefixBytes, std::as_writable_bytes(std::span(text))));
  return parse_layout(text, file.size(), path);
}

const SafetensorsEntry* SafetensorsHeader::find(std::string_view name) const {
  const auto it = std::lower_bound(tensors.begin(), tensors.end(), name,
                                   [](const auto& tensor, auto key) { return tensor.name < key; });
  return it != tensors.end() && it->name == name ? &*it : nullptr;
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto it = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const auto& tensor, auto key) { return tensor.name < key; });
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

Result<std::string> make_safetensors_header(std::vector<StoredTensor>& tensors,
                                            const Metadata& metadata, const std::string& path) {
  stable_sort_by(tensors, [](const auto& a, const auto& b) { return a.name < b.name; });
  TROUPE_RETURN_IF_ERROR(check_declared(tensors, path));
  stable_sort_by(tensors, [](const auto& a, const auto& b) {
    return dtype_size(a.dtype) > dtype_size(b.dtype);
  });
  const std::string text = header_text(tensors, metadata);
  if (text.size() > limits::kSafetensorsHeaderBytesMax) {
    return error(Code::kInvalidArgument, "{}: a header of {} bytes, the limit is {}; write shards",
                 path, text.size(), limits::kSafetensorsHeaderBytesMax);
  }
  const std::uint64_t size = text.size();
  std::string header(kPrefixBytes, '\0');
  std::memcpy(header.data(), &size, kPrefixBytes);
  return header + text;
}

Result<SafetensorsWriter> SafetensorsWriter::create(FileSystem& files, const std::string& path,
                                                    std::vector<StoredTensor> tensors,
                                                    const Metadata& metadata) {
  const auto header = TROUPE_TRY(make_safetensors_header(tensors, metadata, path));
  SafetensorsWriter writer;
  writer.file_ = TROUPE_TRY(files.create(path));
  writer.path_ = path;
  writer.hash_ = std::make_unique<Xxh3Stream>();
  writer.expected_bytes_ = header.size();
  for (const auto& tensor : tensors) {
    writer.expected_bytes_ += *tensor_bytes(tensor.dtype, tensor.shape);
  }
  writer.tensors_ = std::move(tensors);
  TROUPE_RETURN_IF_ERROR(writer.append(bytes_of(header)));
  return writer;
}

Status SafetensorsWriter::append(std::span<const std::byte> data) {
  while (!data.empty()) {
    const auto piece = data.first(std::min(data.size(), kPieceBytes));
    hash_->update(piece);
    TROUPE_RETURN_IF_ERROR(file_->append(piece));
    size_bytes_ += piece.size();
    data = data.subspan(piece.size());
  }
  return {};
}

Result<FileDigest> SafetensorsWriter::finish() {
  TROUPE_CHECK(size_bytes_ == expected_bytes_, "{}: {} bytes were appended, {} declared", path_,
               size_bytes_, expected_bytes_);
  TROUPE_RETURN_IF_ERROR(file_->sync());
  TROUPE_RETURN_IF_ERROR(file_->close());
  return FileDigest{std::filesystem::path(path_).filename().string(), size_bytes_, hash_->digest()};
}

Result<FileDigest> write_safetensors(FileSystem& files, const std::string& path,
                                     const std::vector<StoredTensor>& tensors,
                                     const Metadata& metadata) {
  auto writer = TROUPE_TRY(SafetensorsWriter::create(files, path, tensors, metadata));
  for (const auto& tensor : writer.order()) {
    const auto bytes = TROUPE_TRY(tensor_bytes(tensor.dtype, tensor.shape));
    TROUPE_CHECK(tensor.data.size() == bytes, "tensor '{}': {} bytes given, its shape makes {}",
                 tensor.name, tensor.data.size(), bytes);
    TROUPE_RETURN_IF_ERROR(writer.append(tensor.data));
  }
  return writer.finish();
}

}  // namespace troupe::train
