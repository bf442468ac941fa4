#include "train/report/tensorboard.h"

#include <algorithm>
#include <bit>
#include <boost/crc.hpp>
#include <cstring>
#include <span>
#include <utility>

#include "runtime/base/hash.h"
#include "runtime/base/limits.h"
#include "runtime/base/status.h"

namespace troupe::train {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is the memory's own order");

constexpr std::size_t kHeaderBytes = 12;  // a length and its checksum
constexpr std::size_t kFooterBytes = 4;
constexpr std::string_view kFileVersion = "brain.Event:2";

// Fields of Event and Summary.Value, as their keys on the wire: number << 3 | type.
constexpr char kWallTime = 0x09, kStep = 0x10, kVersion = 0x1a, kSummary = 0x2a;
constexpr char kValue = 0x0a, kTag = 0x0a, kSimpleValue = 0x15;

// CRC-32C, rotated and shifted as TensorFlow's crc32c::Mask does.
std::uint32_t masked_crc(std::string_view bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  return std::rotr(static_cast<std::uint32_t>(crc.checksum()), 15) + 0xa282ead8u;
}

template <typename T>
void put_raw(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <typename T>
T raw_at(std::string_view bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}
void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7f) | 0x80);
  out += static_cast<char>(value);
}
void put_bytes(std::string& out, char key, std::string_view bytes) {
  out += key;
  put_varint(out, bytes.size());
  out += bytes;
}

std::string event_at(const Clock& clock) {
  std::string event(1, kWallTime);
  put_raw(event, static_cast<double>(clock.unix_time_us()) / 1e6);
  return event;
}

std::string tag_of(std::string_view key) {
  return key.starts_with("eval_") ? "eval/" + std::string(key.substr(5))
                                  : "train/" + std::string(key);
}

std::string event_of(const Clock& clock, const json::Object& entry) {
  std::string event = event_at(clock);
  event += kStep;
  put_varint(event, static_cast<std::uint64_t>(
                        std::max<std::int64_t>(0, json::find_integer(entry, "step").value_or(0))));
  // The epoch of a step is there once, with its loss: evaluations and the end of a run say it, too.
  const bool epoch = json::find(entry, "loss") != nullptr;
  std::string summary;
  for (const auto& member : entry) {
    const bool shown = member.key() != "step" && (epoch || member.key() != "epoch");
    if (!shown || !member.value().is_number()) continue;
    std::string value;
    put_bytes(value, kTag, tag_of(std::string_view(member.key())));
    value += kSimpleValue;
    put_raw(value, static_cast<float>(member.value().to_number<double>()));
    put_bytes(summary, kValue, value);
  }
  put_bytes(event, kSummary, summary);
  return event;
}

std::string version_event(const Clock& clock) {
  std::string event = event_at(clock);
  put_bytes(event, kVersion, kFileVersion);
  return event;
}

}  // namespace

std::string event_record(std::string_view event) {
  std::string record;
  put_raw(record, static_cast<std::uint64_t>(event.size()));
  put_raw(record, masked_crc(record));
  record += event;
  put_raw(record, masked_crc(event));
  return record;
}

std::vector<std::size_t> whole_records(std::string_view file) {
  std::vector<std::size_t> ends;
  for (std::size_t at = 0; file.size() - at >= kHeaderBytes + kFooterBytes;) {
    const auto size = raw_at<std::uint64_t>(file, at);
    if (raw_at<std::uint32_t>(file, at + 8) != masked_crc(file.substr(at, 8))) break;
    if (size > file.size() - at - kHeaderBytes - kFooterBytes) break;
    const auto event = file.substr(at + kHeaderBytes, size);
    at += kHeaderBytes + size;
    if (raw_at<std::uint32_t>(file, at) != masked_crc(event)) break;
    ends.push_back(at += kFooterBytes);
  }
  return ends;
}

std::string event_file_name(const std::string& output_dir) {
  return fmt::format("events.out.tfevents.{:08x}.troupe",
                     static_cast<std::uint32_t>(xxh3_64(std::as_bytes(std::span(output_dir)))));
}

Result<TensorBoardFile> TensorBoardFile::open(FileSystem& files, const Clock& clock,
                                              const std::string& path, const json::Array& history) {
  if (const auto slash = path.rfind('/'); slash != std::string::npos && slash > 0) {
    TROUPE_RETURN_IF_ERROR(files.create_directories(path.substr(0, slash)));
  }
  std::string text;
  if (files.exists(path)) text = TROUPE_TRY(files.read(path, limits::kJsonFileBytesMax));
  auto ends = whole_records(text);
  // The first one says the version of the file.
  const std::size_t kept = std::min(ends.size(), history.size() + 1);
  const std::size_t bytes = kept == 0 ? 0 : ends[kept - 1];
  if (bytes != text.size()) {
    TROUPE_RETURN_IF_ERROR(
        write_file_atomically(files, path, std::string_view(text).substr(0, bytes)));
  }
  TensorBoardFile file(clock, TROUPE_TRY(files.open_append(path)));
  if (kept == 0) TROUPE_RETURN_IF_ERROR(file.file_->append(event_record(version_event(clock))));
  for (std::size_t i = kept == 0 ? 0 : kept - 1; i < history.size(); ++i) {
    TROUPE_RETURN_IF_ERROR(file.add(history[i].get_object()));
  }
  return file;
}

Status TensorBoardFile::add(const json::Object& entry) {
  return file_->append(event_record(event_of(*clock_, entry)));
}

}  // namespace troupe::train
