#include "train/checkpoint/manifest.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include "runtime/base/json.h"
#include "runtime/base/sort_by.h"

namespace troupe::train {
namespace {

std::string hash_text(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

std::optional<std::uint64_t> parse_hash(std::string_view text) {
  std::uint64_t hash = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (text.size() != 16 || ec != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return hash;
}

std::optional<std::uint64_t> find_size(const json::Value& value, std::string_view key) {
  const auto number = json::find_integer(value, key);
  if (!number || *number < 0) return std::nullopt;
  return static_cast<std::uint64_t>(*number);
}

json::Object file_to_json(const ManifestFile& file) {
  json::Object object{{"name", file.name}, {"size", file.size_bytes}};
  if (file.parts.empty()) {
    object["xxh3"] = hash_text(file.xxh3);
  } else {
    json::Array parts;
    for (const auto& part : file.parts) {
      parts.push_back(json::Object{
          {"offset", part.offset}, {"size", part.size_bytes}, {"xxh3", hash_text(part.xxh3)}});
    }
    object["parts"] = std::move(parts);
  }
  if (!file.pieces.empty()) {
    json::Object pieces;
    for (const auto& [name, begin] : file.pieces) pieces[name] = begin;
    object["pieces"] = std::move(pieces);
  }
  return object;
}

json::Object to_json(const Manifest& manifest) {
  json::Array files;
  for (const auto& file : manifest.files) files.push_back(file_to_json(file));
  json::Array contents{"model"};
  if (manifest.has_optimizer) contents.push_back("optimizer");
  json::Object object{{"contents", std::move(contents)},
                      {"files", std::move(files)},
                      {"format", manifest.format},
                      {"format_version", manifest.version},
                      {"run", manifest.run},
                      {"step", manifest.step},
                      {"world_size", manifest.world_size}};
  if (!manifest.tensors.empty()) {
    json::Object tensors;
    for (const auto& [name, tensor] : manifest.tensors) {
      json::Array shape(tensor.shape.begin(), tensor.shape.end());
      tensors[name] =
          json::Object{{"dtype", dtype_name(tensor.dtype)}, {"shape", std::move(shape)}};
    }
    object["tensors"] = std::move(tensors);
  }
  return object;
}

// Parts cover the file in order.
bool parse_parts(const json::Value& value, ManifestFile& file) {
  if (!value.is_array() || value.get_array().empty()) return false;
  std::uint64_t end = 0;
  for (const auto& item : value.get_array()) {
    const auto offset = find_size(item, "offset");
    const auto size = find_size(item, "size");
    const auto hash = parse_hash(json::find_string(item, "xxh3").value_or(""));
    if (!offset || !size || !hash || *offset != end || *size > file.size_bytes - end) return false;
    end += *size;
    file.parts.push_back({*offset, *size, *hash});
  }
  return end == file.size_bytes;
}

bool parse_pieces(const json::Value& value, ManifestFile& file) {
  if (!value.is_object()) return false;
  for (const auto& member : value.get_object()) {
    if (!member.value().is_int64() || member.value().get_int64() < 0) return false;
    file.pieces.emplace(std::string(member.key()), member.value().get_int64());
  }
  return true;
}

std::optional<ManifestFile> file_from_json(const json::Value& value) {
  ManifestFile file;
  file.name = json::find_string(value, "name").value_or("");
  if (file.name.empty() || file.name.find('/') != std::string::npos || file.name == "..") return {};
  const auto size = find_size(value, "size");
  if (!size) return {};
  file.size_bytes = *size;
  if (const auto* parts = json::find(value, "parts")) {
    if (!parse_parts(*parts, file)) return {};
  } else {
    const auto hash = parse_hash(json::find_string(value, "xxh3").value_or(""));
    if (!hash) return {};
    file.xxh3 = *hash;
  }
  const auto* pieces = json::find(value, "pieces");
  if (pieces && !parse_pieces(*pieces, file)) return {};
  return file;
}

std::optional<TensorInfo> tensor_from_json(std::string name, const json::Value& value) {
  TensorInfo tensor;
  tensor.name = std::move(name);
  const auto dtype = dtype_from_name(json::find_string(value, "dtype").value_or(""));
  const auto* shape = json::find(value, "shape");
  if (!dtype || !shape || !shape->is_array()) return {};
  tensor.dtype = *dtype;
  for (const auto& dimension : shape->get_array()) {
    if (!dimension.is_int64()) return {};
    tensor.shape.push_back(dimension.get_int64());
  }
  const auto bytes = tensor_bytes(tensor.dtype, tensor.shape);
  if (!bytes || *bytes > std::uint64_t(std::numeric_limits<std::int64_t>::max())) return {};
  tensor.elements = static_cast<std::int64_t>(*bytes / dtype_size(tensor.dtype));
  return tensor;
}

bool parse_tensors(const json::Value& value, Manifest& manifest) {
  if (!value.is_object()) return false;
  for (const auto& member : value.get_object()) {
    const std::string name(member.key());
    auto tensor = tensor_from_json(name, member.value());
    if (!tensor) return false;
    manifest.tensors.emplace(name, std::move(*tensor));
  }
  return true;
}

}  // namespace

std::string manifest_text(Manifest manifest) {
  stable_sort_by(manifest.files, [](const auto& a, const auto& b) { return a.name < b.name; });
  json::Object object = to_json(manifest);
  const std::string body = json::write_indented(object, true);
  object["xxh3"] = hash_text(xxh3_64(bytes_of(body)));
  return json::write_indented(object, true) + "\n";
}

Result<Manifest> parse_manifest(std::string_view text, const std::string& path) {
  const auto damaged = [&](std::string_view why) {
    return error(Code::kDataLoss, "{} is damaged: {}", path, why);
  };
  const auto value = json::parse(text, path, {.bytes_max = kManifestBytesMax});
  if (!value) return damaged(value.status().message());
  const auto version = json::find_integer(*value, "format_version");
  if (version && *version > kCheckpointFormatVersion) {
    return error(Code::kUnsupported,
                 "{} has format version {}, this version of Troupe reads up to {}; use a newer one",
                 path, *version, kCheckpointFormatVersion);
  }
  Manifest manifest;
  const auto step = json::find_integer(*value, "step");
  const auto world_size = json::find_integer(*value, "world_size");
  const auto* files = json::find(*value, "files");
  const auto* contents = json::find(*value, "contents");
  if (!version || !step || !world_size || !files || !files->is_array() || !contents ||
      !contents->is_array()) {
    return damaged("a field is missing");
  }
  if (*step < 0 || *step > kCheckpointStepMax)
    return damaged("its step is none that a run reaches");
  manifest.version = static_cast<int>(*version);
  manifest.step = *step;
  manifest.world_size = static_cast<int>(*world_size);
  manifest.format = json::find_string(*value, "format").value_or("");
  manifest.run = json::find_string(*value, "run").value_or("");
  manifest.has_optimizer = contents->get_array().size() > 1;
  for (const auto& item : files->get_array()) {
    auto file = file_from_json(item);
    if (!file) return damaged("an entry of its list of files is no file");
    manifest.files.push_back(std::move(*file));
  }
  const auto* tensors = json::find(*value, "tensors");
  if (tensors && !parse_tensors(*tensors, manifest)) return damaged("its tensors are none");
  // What was written is a function of the fields: any other text was changed since.
  if (manifest_text(manifest) != text) return damaged("its hash is not that of its text");
  return manifest;
}

Result<Manifest> read_manifest(FileSystem& files, const std::string& directory) {
  const std::string path = join_path(directory, kManifestFile);
  const auto text = files.read(path, kManifestBytesMax);
  if (!text) {
    if (text.status().code() != Code::kNotFound) return text.status();
    return error(Code::kNotFound, "{} has no {}: it was not finished", directory, kManifestFile);
  }
  auto manifest = TROUPE_TRY(parse_manifest(*text, path));
  if (manifest.format != kFormatHf && manifest.format != kFormatSharded) {
    return error(Code::kUnsupported, "{}: the checkpoint format '{}' is not known to this version",
                 path, manifest.format);
  }
  return manifest;
}

}  // namespace troupe::train
