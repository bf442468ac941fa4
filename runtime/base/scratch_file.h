#pragma once
// Memory for more than a process should hold of its own: a file without a name, mapped. Its pages
// go to the disk when memory is short, and it is gone with the object, or with the process.

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "runtime/base/status.h"
#include "troupe/unique_fd.h"

namespace troupe {

class ScratchFile {
 public:
  // On the disk that `folder` is on; in memory where it is empty. kResourceExhausted,
  // kPermissionDenied, kNotFound: of the folder.
  static Result<ScratchFile> create(const std::string& folder);
  ScratchFile(ScratchFile&& other) noexcept;
  ScratchFile& operator=(ScratchFile&& other) noexcept;
  ~ScratchFile();

  // Behind what is there. The room is reserved: kResourceExhausted where the disk has none, instead
  // of a signal when the page is written.
  Status append(std::span<const std::byte> data);
  // The same with bytes that are zero.
  Status grow(std::size_t more_bytes);
  // Until more is appended.
  std::span<std::byte> bytes() { return {data_, size_}; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  ScratchFile(UniqueFd fd, std::string folder) : fd_(std::move(fd)), folder_(std::move(folder)) {}
  Status reserve(std::size_t more_bytes);

  UniqueFd fd_;
  std::string folder_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0, room_ = 0;
};

// The same as an array.
template <typename T>
class ScratchArray {
 public:
  static Result<ScratchArray> create(const std::string& folder) {
    return ScratchArray(TROUPE_TRY(ScratchFile::create(folder)));
  }
  Status append(std::span<const T> items) { return file_.append(std::as_bytes(items)); }
  Status append(const T& item) { return append(std::span(&item, 1)); }
  // Behind what is there, so many that are zero.
  Status grow(std::size_t count) { return file_.grow(count * sizeof(T)); }
  std::span<T> items() {
    const auto bytes = file_.bytes();
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  std::span<const T> items() const {
    const auto bytes = file_.bytes();
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

 private:
  explicit ScratchArray(ScratchFile file) : file_(std::move(file)) {}
  ScratchFile file_;
};

}  // namespace troupe
