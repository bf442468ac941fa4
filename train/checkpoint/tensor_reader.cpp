#include "train/checkpoint/tensor_reader.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "runtime/base/check.h"
#include "train/checkpoint/checkpoint_names.h"
#include "train/checkpoint/safetensors.h"
#include "train/checkpoint/weight_files.h"
#include "train/tensor/convert.h"

namespace troupe::train {

// Named, because TensorReader::Contents has them: a type of an unnamed namespace cannot be in a
// class that a header declares.
namespace tensor_places {

// Elements [begin, end) of a tensor, stored from `offset` of a file on.
struct StoredRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::size_t file = 0;
  std::uint64_t offset = 0;
};

struct TensorPlaces {
  TensorInfo info;
  std::vector<StoredRange> ranges;  // by begin, covering the tensor
};

using PlaceMap = std::map<std::string, TensorPlaces, std::less<>>;

}  // namespace tensor_places

namespace {

using namespace tensor_places;

constexpr std::size_t kStagingBytes = 1u << 20;

TensorInfo info_of(const SafetensorsEntry& entry) {
  const auto elements = (entry.end - entry.begin) / dtype_size(entry.dtype);
  return {entry.name, entry.dtype, entry.shape, static_cast<std::int64_t>(elements)};
}

// Adds what lies in one file; `manifest_file` says which of its tensors are pieces, null: none are.
Status add_file(const Manifest* manifest, const ManifestFile* manifest_file,
                const SafetensorsHeader& header, std::size_t file, const std::string& path,
                PlaceMap& places) {
  for (const auto& entry : header.tensors) {
    TensorInfo info = info_of(entry);
    StoredRange range{0, info.elements, file, entry.begin};
    if (manifest_file && manifest_file->pieces.contains(entry.name)) {
      const auto whole = manifest->tensors.find(entry.name);
      range.begin = manifest_file->pieces.at(entry.name);
      if (whole == manifest->tensors.end() || whole->second.dtype != info.dtype ||
          range.begin > whole->second.elements ||
          info.elements > whole->second.elements - range.begin) {
        return error(Code::kDataLoss, "{}: the piece of '{}' does not fit the tensor that {} names",
                     path, entry.name, kManifestFile);
      }
      range.end = range.begin + info.elements;
      info = whole->second;
    }
    auto& tensor = places.try_emplace(entry.name, TensorPlaces{info, {}}).first->second;
    if (tensor.info.dtype != info.dtype || tensor.info.shape != info.shape) {
      return error(Code::kDataLoss, "{}: '{}' has another type or shape than in other files", path,
                   entry.name);
    }
    tensor.ranges.push_back(range);
  }
  return {};
}

// Sorts a tensor's ranges and sees that they tile it.
Status check_cover(TensorPlaces& tensor, const std::string& directory,
                   const std::vector<std::string>& names) {
  // Empty pieces hold nothing.
  std::erase_if(tensor.ranges, [](const auto& range) { return range.begin == range.end; });
  std::sort(tensor.ranges.begin(), tensor.ranges.end(),
            [](const auto& a, const auto& b) { return a.begin < b.begin; });
  std::int64_t end = 0;
  std::string last;
  for (const auto& range : tensor.ranges) {
    if (range.begin < end) {
      return error(Code::kDataLoss, "{}: elements {} to {} of '{}' are both in {} and in {}",
                   directory, range.begin, std::min(range.end, end), tensor.info.name, last,
                   names[range.file]);
    }
    if (range.begin > end) break;
    end = range.end;
    last = names[range.file];
  }
  if (end == tensor.info.elements) return {};
  const auto next = std::find_if(tensor.ranges.begin(), tensor.ranges.end(),
                                 [&](const auto& range) { return range.begin > end; });
  return error(Code::kDataLoss, "{}: elements {} to {} of '{}' are in no file", directory, end,
               next == tensor.ranges.end() ? tensor.info.elements : next->begin, tensor.info.name);
}

}  // namespace

struct TensorReader::Contents {
  FileSystem* files = nullptr;
  std::string directory;
  std::vector<std::string> file_names;
  PlaceMap places;
  std::vector<TensorInfo> weights, optimizer;

  std::string path_of(std::size_t file) const { return join_path(directory, file_names[file]); }

  // Takes in one file's header.
  Status add(const std::string& name, const WeightFile* placed, const Manifest* manifest,
             PlaceMap& into) {
    const std::size_t file = file_names.size();
    file_names.push_back(name);
    const std::string path = path_of(file);
    auto opened = TROUPE_TRY(files->open_readable(path));
    const auto header = TROUPE_TRY(SafetensorsHeader::read(*opened, path));
    if (placed) {
      std::vector<std::string> names;
      for (const auto& tensor : header.tensors) names.push_back(tensor.name);
      TROUPE_RETURN_IF_ERROR(check_placement(*placed, names, path));
    }
    const ManifestFile* entry = nullptr;
    if (manifest) {
      const auto& known = manifest->files;
      const auto it = std::find_if(known.begin(), known.end(),
                                   [&](const auto& listed) { return listed.name == name; });
      if (it != known.end()) entry = &*it;
    }
    return add_file(manifest, entry, header, file, path, into);
  }

  // Sees that `tensors` are complete, lists them and takes them over.
  Status finish(PlaceMap tensors, std::vector<TensorInfo>& list) {
    for (auto& [name, tensor] : tensors) {
      TROUPE_RETURN_IF_ERROR(check_cover(tensor, directory, file_names));
      list.push_back(tensor.info);
    }
    places.merge(tensors);
    return {};
  }

  Status open_model() {
    PlaceMap tensors;
    for (const auto& file : TROUPE_TRY(find_weight_files(*files, directory))) {
      TROUPE_RETURN_IF_ERROR(add(file.name, &file, nullptr, tensors));
    }
    return finish(std::move(tensors), weights);
  }

  // The manifest's safetensors files whose names begin with `prefix`.
  Status open_listed(const Manifest& manifest, std::string_view prefix,
                     std::vector<TensorInfo>& list) {
    PlaceMap tensors;
    for (const auto& file : manifest.files) {
      if (!file.name.starts_with(prefix) || !file.name.ends_with(".safetensors")) continue;
      TROUPE_RETURN_IF_ERROR(add(file.name, nullptr, &manifest, tensors));
    }
    tensors.erase("step");  // version 1 kept it beside the moments
    // A tensor all of whose pieces are missing is known from the manifest only.
    for (const auto& [name, tensor] : manifest.tensors) {
      const bool elsewhere = std::any_of(
          manifest.files.begin(), manifest.files.end(), [&, &wanted = name](const auto& file) {
            return !file.name.starts_with(prefix) && file.pieces.contains(wanted);
          });
      if (!elsewhere) tensors.try_emplace(name, TensorPlaces{tensor, {}});
    }
    return finish(std::move(tensors), list);
  }
};

TensorReader::TensorReader(std::unique_ptr<const Contents> contents)
    : contents_(std::move(contents)) {}
TensorReader::TensorReader(TensorReader&&) noexcept = default;
TensorReader& TensorReader::operator=(TensorReader&&) noexcept = default;
TensorReader::~TensorReader() = default;

Result<TensorReader> TensorReader::open_model(FileSystem& files, const std::string& directory) {
  auto contents = std::make_unique<Contents>();
  contents->files = &files;
  contents->directory = directory;
  TROUPE_RETURN_IF_ERROR(contents->open_model());
  return TensorReader(std::move(contents));
}

Result<TensorReader> TensorReader::open(FileSystem& files, const GoodCheckpoint& checkpoint) {
  if (checkpoint.foreign) return open_model(files, checkpoint.path);
  auto contents = std::make_unique<Contents>();
  contents->files = &files;
  contents->directory = checkpoint.path;
  const Manifest& manifest = checkpoint.manifest;
  TROUPE_RETURN_IF_ERROR(manifest.format == kFormatSharded
                             ? contents->open_listed(manifest, kShardPrefix, contents->weights)
                             : contents->open_model());
  if (contents->weights.empty()) {
    return error(Code::kDataLoss, "{} holds no weights", checkpoint.path);
  }
  if (checkpoint.has_optimizer) {
    TROUPE_RETURN_IF_ERROR(contents->open_listed(manifest, kOptimizerPrefix, contents->optimizer));
  }
  return TensorReader(std::move(contents));
}

const std::vector<TensorInfo>& TensorReader::weights() const { return contents_->weights; }
const std::vector<TensorInfo>& TensorReader::optimizer() const { return contents_->optimizer; }

const TensorInfo* TensorReader::find(std::string_view name) const {
  const auto it = contents_->places.find(name);
  return it == contents_->places.end() ? nullptr : &it->second.info;
}

// Hands out the stored bytes of elements [begin, begin + count) in order, in ranges that lie
// together in a file: take(file, offset, first element of the range, count of elements).
template <typename Take>
Status TensorReader::for_each_range(std::string_view name, std::int64_t begin, std::size_t count,
                                    Take take) const {
  const auto it = contents_->places.find(name);
  if (it == contents_->places.end()) {
    return error(Code::kNotFound, "{} holds no tensor '{}'", contents_->directory, name);
  }
  const auto& tensor = it->second;
  const auto elements = tensor.info.elements;
  if (begin < 0 || begin > elements || count > static_cast<std::uint64_t>(elements - begin)) {
    return error(Code::kInvalidArgument, "'{}' has {} elements, {} from {} on were asked for", name,
                 elements, count, begin);
  }
  const auto end = begin + static_cast<std::int64_t>(count);
  const std::size_t width = dtype_size(tensor.info.dtype);
  auto range = std::partition_point(tensor.ranges.begin(), tensor.ranges.end(),
                                    [&](const auto& r) { return r.end <= begin; });
  for (; range != tensor.ranges.end() && range->begin < end; ++range) {
    const auto from = std::max(begin, range->begin);
    const auto to = std::min(end, range->end);
    const auto offset = range->offset + static_cast<std::uint64_t>(from - range->begin) * width;
    const std::string path = contents_->path_of(range->file);
    auto file = TROUPE_TRY(contents_->files->open_readable(path));
    TROUPE_RETURN_IF_ERROR(take(*file, offset, static_cast<std::size_t>(from - begin),
                                static_cast<std::size_t>(to - from)));
  }
  return {};
}

Status TensorReader::read_bytes(std::string_view name, std::int64_t begin,
                                std::span<std::byte> out) const {
  const auto* info = find(name);
  const std::size_t width = info ? dtype_size(info->dtype) : 1;
  TROUPE_CHECK(out.size() % width == 0, "'{}': {} bytes are no whole elements", name, out.size());
  return for_each_range(
      name, begin, out.size() / width,
      [&](ReadableFile& file, std::uint64_t offset, std::size_t at, std::size_t count) {
        return file.read_at(offset, out.subspan(at * width, count * width));
      });
}

template <typename T, typename Convert>
Status TensorReader::read_converted(std::string_view name, std::int64_t begin, std::span<T> out,
                                    Convert convert) const {
  const auto* info = find(name);
  const std::size_t width = info ? dtype_size(info->dtype) : 1;
  std::vector<std::byte> staging;
  return for_each_range(
      name, begin, out.size(),
      [&](ReadableFile& file, std::uint64_t offset, std::size_t at, std::size_t count) -> Status {
        const std::size_t chunk_max = kStagingBytes / width;
        staging.resize(std::min(count, chunk_max) * width);
        for (std::size_t done = 0; done < count;) {
          const auto chunk = std::min(chunk_max, count - done);
          const auto bytes = std::span(staging).first(chunk * width);
          TROUPE_RETURN_IF_ERROR(file.read_at(offset + done * width, bytes));
          Status status = convert(bytes, out.subspan(at + done, chunk));
          if (!status) return status.prefixed(fmt::format("'{}'", name));
          done += chunk;
        }
        return {};
      });
}

Status TensorReader::read(std::string_view name, std::int64_t begin, std::span<float> out) const {
  const auto* info = find(name);
  if (info && info->dtype == DType::kF32) {
    return read_bytes(name, begin, std::as_writable_bytes(out));
  }
  return read_converted(name, begin, out,
                        [&](std::span<const std::byte> bytes, std::span<float> target) {
                          return convert_to_float(bytes, info->dtype, target);
                        });
}

Status TensorReader::read_bf16(std::string_view name, std::int64_t begin,
                               std::span<std::uint16_t> out) const {
  const auto* info = find(name);
  if (info && info->dtype == DType::kBF16) {
    return read_bytes(name, begin, std::as_writable_bytes(out));
  }
  std::vector<float> floats;
  return read_converted(
      name, begin, out,
      [&](std::span<const std::byte> bytes, std::span<std::uint16_t> target) -> Status {
        floats.resize(target.size());
        TROUPE_RETURN_IF_ERROR(convert_to_float(bytes, info->dtype, floats));
        std::transform(floats.begin(), floats.end(), target.begin(),
                       [](float x) { return float_to_bf16(x); });
        return {};
      });
}

}  // namespace troupe::train
