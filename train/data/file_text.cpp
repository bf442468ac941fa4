#include "train/data/file_text.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <span>
#include <utility>

#include "runtime/base/limits.h"

namespace troupe::train {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
// A file begins with so many bytes at most that tell what it is.
constexpr std::size_t kMagicBytesMax = 6;

}  // namespace

// Decompresses a file piece by piece.
class FileText::Decoder {
 public:
  virtual ~Decoder() = default;
  // Takes bytes off the front of `in` and appends what they become to `out`, at most kChunkBytes.
  virtual Status step(std::string_view& in, std::string& out) = 0;
  // Nothing that was begun is unfinished.
  virtual bool is_whole() const = 0;
  virtual std::string_view name() const = 0;
};

namespace {

class GzipDecoder final : public FileText::Decoder {
 public:
  static std::unique_ptr<GzipDecoder> make() {
    auto out = std::make_unique<GzipDecoder>();
    constexpr int kGzipOnly = 16 + MAX_WBITS;
    if (inflateInit2(&out->stream_, kGzipOnly) != Z_OK) return nullptr;
    out->initialized_ = true;
    return out;
  }
  ~GzipDecoder() override {
    if (initialized_) inflateEnd(&stream_);
  }

  Status step(std::string_view& in, std::string& out) override {
    if (whole_ && members_ > 0)  // zeros behind the end are padding, as for Python's gzip
      in.remove_prefix(std::min(in.find_first_not_of('\0'), in.size()));
    if (whole_ && in.empty()) return {};
    whole_ = false;
    const std::size_t given = std::min(in.size(), kChunkBytes), before = out.size();
    // zlib does not change what it reads; its older interface does not say so.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
    stream_.avail_in = static_cast<uInt>(given);
    out.resize(before + kChunkBytes);
    stream_.next_out = reinterpret_cast<Bytef*>(out.data() + before);
    stream_.avail_out = static_cast<uInt>(kChunkBytes);
    const int code = inflate(&stream_, Z_NO_FLUSH);
    out.resize(out.size() - stream_.avail_out);
    in.remove_prefix(given - stream_.avail_in);
    if (code == Z_STREAM_END) {  // another may follow: gzip files joined by cat
      whole_ = true;
      ++members_;
      inflateReset(&stream_);
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
      return error(Code::kDataLoss, "damaged gzip data: {}", stream_.msg ? stream_.msg : "unknown");
    }
    return {};
  }
  bool is_whole() const override { return whole_; }
  std::string_view name() const override { return "gzip"; }

 private:
  z_stream stream_{};
  bool initialized_ = false, whole_ = true;
  int members_ = 0;
};

class ZstdDecoder final : public FileText::Decoder {
 public:
  ZstdDecoder() : context_(ZSTD_createDCtx(), ZSTD_freeDCtx) {}
  bool ready() const { return context_ != nullptr; }

  Status step(std::string_view& in, std::string& out) override {
    if (whole_ && in.empty()) return {};  // frames joined by cat are one content
    const std::size_t before = out.size();
    out.resize(before + kChunkBytes);
    ZSTD_inBuffer from{in.data(), in.size(), 0};
    ZSTD_outBuffer room{out.data() + before, kChunkBytes, 0};
    const std::size_t left = ZSTD_decompressStream(context_.get(), &room, &from);
    out.resize(before + room.pos);
    in.remove_prefix(from.pos);
    if (ZSTD_isError(left) != 0)
      return error(Code::kDataLoss, "damaged zstd data: {}", ZSTD_getErrorName(left));
    whole_ = left == 0;
    return {};
  }
  bool is_whole() const override { return whole_; }
  std::string_view name() const override { return "zstd"; }

 private:
  std::unique_ptr<ZSTD_DCtx, std::size_t (*)(ZSTD_DCtx*)> context_;
  bool whole_ = true;
};

// Of what begins with these bytes; nothing: it is not compressed.
Result<std::unique_ptr<FileText::Decoder>> decoder_for(std::string_view begin) {
  std::unique_ptr<FileText::Decoder> out;
  if (begin.starts_with("\x1f\x8b")) {
    out = GzipDecoder::make();
    if (!out) return error(Code::kResourceExhausted, "no memory to decompress it");
  } else if (begin.starts_with("\x28\xb5\x2f\xfd")) {
    auto zstd = std::make_unique<ZstdDecoder>();
    if (!zstd->ready()) return error(Code::kResourceExhausted, "no memory to decompress it");
    out = std::move(zstd);
  }
  constexpr std::string_view kXz(
      "\xfd"
      "7zXZ",
      5);
  for (const auto& [magic, program] : {std::pair(std::string_view("BZh"), "bzip2"), {kXz, "xz"}}) {
    if (begin.starts_with(magic))
      return error(Code::kUnsupported, "it is compressed by {}; decompress it first ({} -d)",
                   program, program);
  }
  return out;
}

}  // namespace

FileText::FileText(std::string path, std::unique_ptr<ReadableFile> file, std::size_t piece_bytes)
    : path_(std::move(path)), file_(std::move(file)), piece_bytes_(piece_bytes) {}
FileText::FileText(FileText&&) noexcept = default;
FileText::~FileText() = default;

Result<FileText> FileText::open(FileSystem& files, std::string path, std::size_t piece_bytes) {
  auto file = TROUPE_TRY(files.open_readable(path));
  FileText out(std::move(path), std::move(file), std::max(piece_bytes, kMagicBytesMax));
  TROUPE_RETURN_IF_ERROR(out.read_stored());
  auto decoder = decoder_for(out.stored_);
  if (!decoder.ok()) return decoder.status().prefixed(out.path_);
  out.decoder_ = std::move(*decoder);
  if (!out.is_compressed()) out.read_ = std::exchange(out.stored_, {});
  return out;
}

// The next bytes of the file, in place of those that were decoded; none at its end.
Status FileText::read_stored() {
  const auto count = std::min<std::uint64_t>(piece_bytes_, file_->size() - at_);
  stored_.resize(count);
  decoded_ = 0;
  const Status done = file_->read_at(at_, std::as_writable_bytes(std::span(stored_)));
  if (done.code() == Code::kDataLoss)
    return error(Code::kDataLoss, "{} has become shorter while it was read: {}", path_,
                 done.message());
  at_ += count;
  return done;
}

Status FileText::append_stored() {
  TROUPE_RETURN_IF_ERROR(read_stored());
  read_ += stored_;
  return {};
}

Status FileText::append_decoded(std::size_t wanted) {
  for (const std::size_t before = read_.size(); read_.size() - before < wanted;) {
    if (decoded_ == stored_.size()) TROUPE_RETURN_IF_ERROR(read_stored());
    std::string_view in = std::string_view(stored_).substr(decoded_);
    const std::size_t size_before = read_.size(), in_before = in.size();
    const Status done = decoder_->step(in, read_);
    if (!done.ok()) return done.prefixed(path_);
    decoded_ = stored_.size() - in.size();
    if (read_.size() > size_before || in.size() < in_before) continue;
    if (decoder_->is_whole()) return {};
    return error(Code::kDataLoss, "{}: the {} data end in the middle", path_, decoder_->name());
  }
  return {};
}

Result<bool> FileText::more() {
  read_.erase(0, std::exchange(taken_, 0));
  const std::size_t before = read_.size();
  if (before > limits::kJsonFileBytesMax)
    return error(Code::kInvalidArgument, "a row has more than {} bytes", limits::kJsonFileBytesMax);
  const std::size_t wanted = std::max(before, std::size_t{1});
  if (is_compressed()) {
    TROUPE_RETURN_IF_ERROR(append_decoded(wanted));
  } else {
    while (read_.size() - before < wanted && at_ < file_->size())
      TROUPE_RETURN_IF_ERROR(append_stored());
  }
  return read_.size() > before;
}

Result<std::string> FileText::rest(std::size_t bytes_max) {
  std::string out;
  for (bool there = true; there; there = TROUPE_TRY(more())) {
    if (out.size() + window().size() > bytes_max)
      return error(Code::kUnsupported, "{}: more than {} bytes when decompressed; cut it in parts",
                   path_, bytes_max);
    out += window();
    take(window().size());
  }
  return out;
}

}  // namespace troupe::train
