#pragma once
// An actor that keeps, takes over and reads segments as it is told to.

#include <unistd.h>

#include <cstring>
#include <string>

#include "runtime/memory/segment.h"
#include "troupe/actor.h"
#include "troupe/handle.h"

namespace troupe::tests {

class Memory {
 public:
  static constexpr std::size_t kBytes = 4096;
  explicit Memory(ActorContext& context) : context_(context) {}

  Status put(const std::string& name, const std::string& text) {
    auto segment = TROUPE_TRY(memory::Segment::create("test", kBytes));
    std::memcpy(segment.data(), text.data(), text.size());
    return context_.keep_segment(name, segment.fd());
  }
  Status forget(const std::string& name) { return context_.keep_segment(name, -1); }
  // Takes it over; what is in it.
  Result<std::string> take(const std::string& name, std::int64_t timeout_ms) {
    auto fd = TROUPE_TRY(
        context_.attach_segment(name, Deadline::after(std::chrono::milliseconds(timeout_ms))));
    auto segment =
        TROUPE_TRY(memory::Segment::adopt(std::move(fd), kBytes, memory::Access::kReadWrite));
    return std::string(reinterpret_cast<const char*>(segment.data()));
  }
  Result<std::string> read(ActorHandle<Memory> of, const std::string& name) {
    const auto bytes = TROUPE_TRY(
        context_.read_segment(of.id(), name, kBytes, Deadline::after(std::chrono::seconds(10))));
    return std::string(reinterpret_cast<const char*>(bytes.data()));
  }
  std::int64_t pid() const { return ::getpid(); }

  static constexpr auto methods =
      troupe::methods<&Memory::put, &Memory::forget, &Memory::take, &Memory::read, &Memory::pid>;

 private:
  ActorContext& context_;
};

}  // namespace troupe::tests
