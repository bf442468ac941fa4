#pragma once
// Who waits for the answer of a call.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "troupe/status.h"

namespace troupe::detail {

// What users attached to futures, to be run by somebody who may run their code.
using Continuations = std::vector<std::function<void()>>;

// Thread-safe.
class CallSink {
 public:
  // The call ended: `result` holds the method's result where `status` is ok, and lives only during
  // the call. What would run users' code on this thread is put into `later` where that is given.
  virtual void answer(const Status& status, std::span<const std::byte> result,
                      Continuations* later) = 0;
  // No answer will come.
  virtual void abandon() = 0;
  // The index-th item of a stream, before the answer; in order, on the loop's thread.
  virtual void item(std::uint64_t index, std::span<const std::byte> bytes) {
    (void)index, (void)bytes;
  }

 protected:
  ~CallSink() = default;
};

// A call's hold on its sink: answers once, and abandons where it is destroyed before.
class CallSinkRef {
 public:
  CallSinkRef() = default;
  explicit CallSinkRef(std::shared_ptr<CallSink> sink) : sink_(std::move(sink)) {}
  CallSinkRef(CallSinkRef&&) noexcept = default;
  CallSinkRef& operator=(CallSinkRef&& other) noexcept {
    std::swap(sink_, other.sink_);
    return *this;
  }
  ~CallSinkRef() {
    if (sink_) sink_->abandon();
  }
  void answer(const Status& status, std::span<const std::byte> result,
              Continuations* later = nullptr) {
    if (const auto sink = std::exchange(sink_, nullptr)) sink->answer(status, result, later);
  }
  // To give it items.
  const std::shared_ptr<CallSink>& sink() const { return sink_; }

 private:
  std::shared_ptr<CallSink> sink_;
};

}  // namespace troupe::detail
