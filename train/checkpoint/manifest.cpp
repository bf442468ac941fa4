#include "train/checkpoint/manifest.h"

#include <algorithm>
#include <charconv>

#include "runtime/base/json.h"

namespace troupe::train {
namespace {

// A manifest lists files, a few for each rank: far below this.
constexpr std::size_t kManifestBytesMax = 16u << 20;

std::string hash_text(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

std::optional<std::uint64_t> parse_hash(std::string_view text) {
  std::uint64_t hash = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (text.size() != 16 || ec != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return hash;
}

json::Object to_json(const Manifest& manifest) {
  json::Array files;
  for (const auto& file : manifest.files) {
    files.push_back(json::Object{
        {"name", file.name}, {"size", file.size_bytes}, {"xxh3", hash_text(file.xxh3)}});
  }
  json::Array contents{"model"};
  if (manifest.has_optimizer) contents.push_back("optimizer");
  return json::Object{{"contents", std::move(contents)},
                      {"files", std::move(files)},
                      {"format", manifest.format},
                      {"format_version", kCheckpointFormatVersion},
                      {"run", manifest.run},
                      {"step", manifest.step},
                      {"world_size", manifest.world_size}};
}

std::optional<FileDigest> file_from_json(const json::Value& value) {
  const auto name = json::find_string(value, "name");
  const auto size = json::find_integer(value, "size");
  const auto hash = parse_hash(json::find_string(value, "xxh3").value_or(""));
  if (!name || name->empty() || name->find('/') != std::string::npos || *name == "..") return {};
  if (!size || *size < 0 || !hash) return {};
  return FileDigest{*name, static_cast<std::uint64_t>(*size), *hash};
}

Status verify_file(FileSystem& files, const std::string& directory, const FileDigest& digest) {
  const std::string path = join_path(directory, digest.name);
  auto mapping = files.map(path);
  if (!mapping) {
    if (mapping.status().code() != Code::kNotFound) return mapping.status();
    return error(Code::kDataLoss, "{} is missing", path);
  }
  const auto bytes = (*mapping)->bytes();
  if (bytes.size() != digest.size_bytes) {
    return error(Code::kDataLoss, "{} has {} bytes instead of {}", path, bytes.size(),
                 digest.size_bytes);
  }
  if (xxh3_64(bytes) != digest.xxh3) {
    return error(Code::kDataLoss, "{} is damaged: its hash is not the one it was written with",
                 path);
  }
  return {};
}

}  // namespace

std::string manifest_text(Manifest manifest) {
  std::sort(manifest.files.begin(), manifest.files.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
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
  if (!step || !world_size || !files || !files->is_array() || !contents || !contents->is_array()) {
    return damaged("a field is missing");
  }
  manifest.step = *step;
  manifest.world_size = static_cast<int>(*world_size);
  manifest.format = json::find_string(*value, "format").value_or("");
  manifest.run = json::find_string(*value, "run").value_or("");
  manifest.has_optimizer = contents->get_array().size() > 1;
  for (const auto& file : files->get_array()) {
    const auto digest = file_from_json(file);
    if (!digest) return damaged("an entry of its list of files is no file");
    manifest.files.push_back(*digest);
  }
  // What was written is a function of the fields: any other text was changed since.
  if (manifest_text(manifest) != text) return damaged("its hash is not that of its text");
  return manifest;
}

Result<Manifest> verify_checkpoint(FileSystem& files, const std::string& directory) {
  const std::string path = join_path(directory, kManifestFile);
  const auto text = files.read(path, kManifestBytesMax);
  if (!text) {
    if (text.status().code() != Code::kNotFound) return text.status();
    return error(Code::kNotFound, "{} has no {}: it was not finished", directory, kManifestFile);
  }
  auto manifest = TROUPE_TRY(parse_manifest(*text, path));
  if (manifest.format != kFormatHf) {
    return error(Code::kUnsupported, "{}: the checkpoint format '{}' is not known to this version",
                 path, manifest.format);
  }
  for (const auto& digest : manifest.files) {
    TROUPE_RETURN_IF_ERROR(verify_file(files, directory, digest));
  }
  return manifest;
}

}  // namespace troupe::train
