#include "scheduler/objects/object_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "runtime/base/file_system.h"

namespace troupe::scheduler {

Result<std::shared_ptr<ObjectMemory>> ObjectMemory::create(std::uint64_t bytes, Writer writer) {
  UniqueFd fd(::memfd_create("troupe-objects", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return errno_status(errno, "make", "memory for objects");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return errno_status(errno, "make", "memory for objects");
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return errno_status(errno, "seal", "memory for objects");
  }
  const std::shared_ptr<ObjectMemory> memory(new ObjectMemory(std::move(fd), bytes));
  if (writer == Writer::kProcess) return memory;
  if (memory->mapped().empty()) return Status(Code::kOutOfMemory, "objects cannot be mapped");
  if (::fcntl(memory->fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    return errno_status(errno, "seal", "memory for objects");
  }
  return memory;
}

ObjectMemory::~ObjectMemory() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

std::span<std::byte> ObjectMemory::mapped() {
  const std::lock_guard lock(mutex_);
  if (data_ == nullptr) {
    // A process that has sealed it leaves it readable.
    void* data = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    if (data == MAP_FAILED) data = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd_.get(), 0);
    if (data == MAP_FAILED) return {};
    data_ = static_cast<std::byte*>(data);
  }
  return {data_, bytes_};
}

void ObjectMemory::populate() {
  if (const auto all = mapped(); !all.empty())
    (void)::madvise(all.data(), all.size(), MADV_POPULATE_WRITE);
}

void ObjectMemory::arrived(std::uint64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    arrived_ = bytes;
  }
  changed_.notify_all();
}

void ObjectMemory::abandon() {
  {
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
  }
  changed_.notify_all();
}

bool ObjectMemory::abandoned() const {
  const std::lock_guard lock(mutex_);
  return abandoned_;
}

Result<std::uint64_t> ObjectMemory::wait_beyond(std::uint64_t have, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto enough = [&] { return abandoned_ || arrived_ > have; };
  if (!changed_.wait_until(lock, deadline.time(), enough)) {
    return Status(Code::kDeadlineExceeded, "the object's bytes do not come any further");
  }
  if (abandoned_) return Status(Code::kUnavailable, "the object has been dropped");
  return std::min(arrived_, bytes_);
}

}  // namespace troupe::scheduler
