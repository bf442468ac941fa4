#include "train/data/compressed.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <memory>

namespace troupe::train {
namespace {

// A file whose content is larger is refused: it would not fit beside the samples made of it.
constexpr std::size_t kDecompressedBytesMax = std::size_t{8} << 30;
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

Status too_large(const std::string& name) {
  return error(Code::kUnsupported, "{}: more than {} bytes when decompressed; cut it in parts",
               name, kDecompressedBytesMax);
}

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
    if (out.size() > kDecompressedBytesMax) return too_large(name);
    if (code == Z_STREAM_END) {
      // Zeros behind the end are padding, as for Python's gzip.
      if (bytes.find_first_not_of('\0') == std::string_view::npos) return out;
      if (inflateReset(&stream) == Z_OK) continue;  // gzip files joined by cat
    }
    if (code != Z_OK && code != Z_BUF_ERROR && code != Z_STREAM_END)
      return error(Code::kDataLoss, "{}: damaged gzip data: {}", name,
                   stream.msg ? stream.msg : "unknown");
    if (bytes.empty() && used == 0 && out.size() == before)
      return error(Code::kDataLoss, "{}: the gzip data end in the middle", name);
  }
}

Result<std::string> unpacked_by_zstd(std::string_view bytes, const std::string& name) {
  const std::unique_ptr<ZSTD_DCtx, std::size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(),
                                                                        ZSTD_freeDCtx);
  if (!context) return error(Code::kResourceExhausted, "{}: no memory to decompress it", name);
  ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
  std::string out;
  // Frames joined by cat are one content.
  for (std::size_t left = 1; in.pos < in.size || left != 0;) {
    const std::size_t before = out.size();
    out.resize(before + kChunkBytes);
    ZSTD_outBuffer room{out.data() + before, kChunkBytes, 0};
    const std::size_t input_before = in.pos;
    left = ZSTD_decompressStream(context.get(), &room, &in);
    out.resize(before + room.pos);
    if (ZSTD_isError(left) != 0)
      return error(Code::kDataLoss, "{}: damaged zstd data: {}", name, ZSTD_getErrorName(left));
    if (out.size() > kDecompressedBytesMax) return too_large(name);
    if (in.pos == input_before && room.pos == 0 && left != 0)
      return error(Code::kDataLoss, "{}: the zstd data end in the middle", name);
  }
  return out;
}

}  // namespace

Result<std::optional<std::string>> decompressed(std::string_view bytes, const std::string& name) {
  if (bytes.starts_with("\x1f\x8b")) return std::optional(TROUPE_TRY(inflated(bytes, name)));
  if (bytes.starts_with("\x28\xb5\x2f\xfd"))
    return std::optional(TROUPE_TRY(unpacked_by_zstd(bytes, name)));
  const std::pair<std::string_view, const char*> others[] = {{"BZh", "bzip2"},
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
