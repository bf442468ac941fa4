#pragma once
// The future of a call: decodes the answer.

#include <memory>
#include <span>
#include <utility>

#include "troupe/detail/call_line.h"
#include "troupe/future.h"
#include "troupe/serialize.h"

namespace troupe::detail {

template <typename Value>  // void where the method returns nothing
class CallState final : public FutureState<NonVoid<Value>>, public CallSink {
  using Base = FutureState<NonVoid<Value>>;

 public:
  CallState(FutureOptions options, const std::shared_ptr<ActorClient>& client,
            const std::shared_ptr<ActorChannel>& channel,
            std::uint32_t light_number = kNoLightNumber)
      : Base(std::move(options)), line_(client, channel, light_number) {}

  CallLine& line() { return line_; }

  void answer(const Status& status, std::span<const std::byte> result,
              Continuations* later) override {
    line_.answered();
    Base::set(decode(status, result), later);
  }
  void abandon() override { Base::end_with(broken_promise()); }
  Status late() const override {
    auto status = line_.late("no result before the deadline of get()");
    return status ? line_.of_this_actor(std::move(*status)) : Base::late();
  }

 private:
  Result<NonVoid<Value>> decode(const Status& status, std::span<const std::byte> result) const {
    if (!status.ok()) return line_.of_this_actor(status);
    if constexpr (std::is_void_v<Value>) {
      return Unit{};
    } else {
      const DecodeContext context = line_.decode_context();
      auto value = decode_value<Value>(result, context);
      if (context.intake) line_.take_references(std::move(context.intake));
      return value;
    }
  }
  void help(Deadline deadline) override { line_.help(*this, deadline); }
  Status explained(Status why) const override { return line_.placed(std::move(why)); }
  void cancelled() override { line_.cancel(); }
  std::shared_ptr<void> begin_long_wait(const RunningCall& call) override {
    return line_.begin_long_wait(*this, call);
  }

  CallLine line_;
};

}  // namespace troupe::detail
