#include "train/data/compressed.h"

#include <zlib.h>

#include <algorithm>
#include <memory>

namespace troupe::train {
namespace {

// A file whose content is larger is refused: it would not fit beside the samples made of it.
constexpr std::size_t kDecompressedBytesMax = std::size_t{8} << 30;
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

Result<std::string> inflated(std::string_view bytes, const std::string& name) {
  z_stream stream{};
  constexpr int kGzipOnly = 16 + MAX_WBITS;
  if (inflateInit2(&stream, kGzipOnly) != Z_OK)
    return error(Code::kResourceExhausted, "{}: no memory to decompress it", name);
  const std::unique_ptr<z_stream, int (*)(z_stream*)> owner(&stream, inflateEnd);
  std::string out;
  while (true) {
    const std::size_t given = std::min(bytes.size(), kChunkBytes);
    // zlib does not change what it reads; its older interface does not say so.
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    stream.avail_in = static_cast<uInt>(given);
    const std::size_t before = out.size();
    out.resize(before + kChunkBytes);
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + before);
    stream.avail_out = static_cast<uInt>(kChunkBytes);
    const int code = inflate(&stream, Z_NO_FLUSH);
    out.resize(out.size() - stream.avail_out);
    const std::size_t used = given - stream.avail_in;
    bytes.remove_prefix(used);
    if (out.size() > kDecompressedBytesMax)
      return error(Code::kUnsupported, "{}: more than {} bytes when decompressed; cut it in parts",
                   name, kDecompressedBytesMax);
    if (code == Z_STREAM_END) {
      if (bytes.empty()) return out;
      if (inflateReset(&stream) == Z_OK) continue;  // gzip files joined by cat
    }
    if (code != Z_OK && code != Z_BUF_ERROR && code != Z_STREAM_END)
      return error(Code::kDataLoss, "{}: damaged gzip data: {}", name,
                   stream.msg ? stream.msg : "unknown");
    if (bytes.empty() && used == 0 && out.size() == before)
      return error(Code::kDataLoss, "{}: the gzip data end in the middle", name);
  }
}

}  // namespace

Result<std::optional<std::string>> decompressed(std::string_view bytes, const std::string& name) {
  if (bytes.starts_with("\x1f\x8b")) return std::optional(TROUPE_TRY(inflated(bytes, name)));
  const std::pair<std::string_view, const char*> others[] = {{"\x28\xb5\x2f\xfd", "zstd"},
                                                             {"BZh", "bzip2"},
                                                             {std::string_view("\xfd"
                                                                               "7zXZ",
                                                                               5),
                                                              "xz"}};
  for (const auto& [magic, program] : others) {
    if (bytes.starts_with(magic)) {
      return error(Code::kUnsupported, "{}: it is compressed by {}; decompress it first ({} -d)",
                   name, program, program);
    }
  }
  return std::optional<std::string>();
}

}  // namespace troupe::train
