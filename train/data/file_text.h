#pragma once
// The text of a data file, some of it in memory at a time.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/file_system.h"

namespace troupe::train {

// Of a file that is compressed by gzip or zstd: what is in it. Its first bytes decide, as in
// Hugging Face's datasets, not its name.
class FileText {
 public:
  static constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
  // Read in pieces of so many bytes. kUnsupported with what to do for bzip2 and xz.
  static Result<FileText> open(FileSystem& files, std::string path,
                               std::size_t piece_bytes = kPieceBytes);
  FileText(FileText&&) noexcept;
  ~FileText();

  bool is_compressed() const { return decoder_ != nullptr; }
  const std::string& path() const { return path_; }

  // What was read and not yet taken. Until more() is called.
  std::string_view window() const { return std::string_view(read_).substr(taken_); }
  void take(std::size_t bytes) { taken_ += bytes; }
  // Reads more behind the window, at least as much again as there is; false at the end of the text.
  // Views of the window are of no use after either.
  // kDataLoss: the compressed data are damaged, or the file has become shorter. kInvalidArgument:
  // the window would be larger than anything that a data file may have in one piece.
  Result<bool> more();
  // All that is left, at once. kUnsupported where it is more than `bytes_max`.
  Result<std::string> rest(std::size_t bytes_max);

  class Decoder;

 private:
  FileText(std::string path, std::unique_ptr<ReadableFile> file, std::size_t piece_bytes);
  Status read_stored();
  Status append_stored();
  Status append_decoded(std::size_t wanted);

  std::string path_;
  std::unique_ptr<ReadableFile> file_;
  std::size_t piece_bytes_ = kPieceBytes;
  std::uint64_t at_ = 0;     // in the file, of what is read next
  std::string stored_;       // compressed bytes that were read,
  std::size_t decoded_ = 0;  // of which so many are in read_
  std::unique_ptr<Decoder> decoder_;
  std::string read_;
  std::size_t taken_ = 0;
};

}  // namespace troupe::train
