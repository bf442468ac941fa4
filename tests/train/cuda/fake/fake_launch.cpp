#include "tests/train/cuda/fake/fake_launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "train/cpu/arena.h"
#include "train/cpu/cpu_operators.h"
#include "train/tensor/convert.h"

namespace troupe::tests::fake {
namespace {

thread_local bool only_checking = false;

// Overwrites what a launch may neither have left in its scratch nor expect there. Of large scratch
// both ends alone: products ask for tens of MiB, and filling all of it at each launch took a fifth
// of the time of train/trainer's tests.
void spoil_scratch(void* scratch, std::int64_t bytes) {
  constexpr std::int64_t end = 64 << 10;
  auto* const at = static_cast<char*>(scratch);
  const std::int64_t first = std::min(bytes, end);
  std::memset(at, 0xab, static_cast<std::size_t>(first));
  const std::int64_t last = std::min(bytes - first, end);
  std::memset(at + bytes - last, 0xab, static_cast<std::size_t>(last));
}

}  // namespace

OnlyChecking::OnlyChecking() { only_checking = true; }
OnlyChecking::~OnlyChecking() { only_checking = false; }

train::Operators& cpu_operators() {
  thread_local train::Arena arena(1);
  thread_local const auto operators = train::make_cpu_operators(arena);
  return *operators;
}

Launch::Launch(TroupeCudaStream* stream, const char* function)
    : stream_(stream),
      function_(function),
      code_(state().enter(function, stream->context->device)) {}

Launch& Launch::needs(const void* at, std::int64_t count, int type, const char* name,
                      bool optional) {
  if (code_ || (!at && optional)) return *this;
  const std::int64_t bytes = count * type_bytes(type);
  uses_.push_back({at, bytes});
  if (!state().known(at, bytes))
    code_ = state().fail(TROUPE_CUDA_INVALID, fmt::format("{}: {} is not {} bytes of the device",
                                                          function_, name, bytes));
  else if (reinterpret_cast<std::uintptr_t>(at) % static_cast<std::uintptr_t>(type_bytes(type)))
    code_ =
        state().fail(TROUPE_CUDA_INVALID, fmt::format("{}: {} is not aligned", function_, name));
  return *this;
}

Launch& Launch::activations_of(int type) {
  return requires_that(type == TROUPE_CUDA_F32 || type == TROUPE_CUDA_BF16,
                       "a type that is not F32 or BF16");
}

Launch& Launch::scratch(void* at, std::int64_t bytes) {
  needs(at, bytes, TROUPE_CUDA_U8, "scratch");
  scratch_ = at, scratch_bytes_ = bytes;
  return *this;
}

Launch& Launch::first(std::function<void()> look) {
  first_ = std::move(look);
  return *this;
}

Launch& Launch::by_plan(std::int64_t number) {
  plan_ = number;
  return requires_that(state().has_plan(number), "a plan that was destroyed");
}

Launch& Launch::requires_that(bool condition, const char* what) {
  if (!code_ && !condition)
    code_ = state().fail(TROUPE_CUDA_INVALID, fmt::format("{}: {}", function_, what));
  return *this;
}

int Launch::run(std::function<void(train::Operators&)> work) {
  if (code_) return code_;
  if (only_checking) work = nullptr;
  stream_->enqueue({.run =
                        [work = std::move(work), first = std::move(first_), scratch = scratch_,
                         bytes = scratch_bytes_] {
                          if (first) first();
                          if (scratch) spoil_scratch(scratch, bytes);
                          if (work) work(cpu_operators());
                        },
                    .function = function_,
                    .uses = std::move(uses_),
                    .attention_plan = plan_});
  return TROUPE_CUDA_OK;
}

In::In(int type, const void* at, std::int64_t count) : data_(static_cast<const float*>(at)) {
  if (type != TROUPE_CUDA_BF16) return;
  copy_.resize(static_cast<std::size_t>(count));
  train::float_from_bf16(static_cast<const std::uint16_t*>(at), copy_.data(), count);
  data_ = copy_.data();
}

InOut::InOut(int type, void* at, std::int64_t count) : data_(static_cast<float*>(at)) {
  if (type != TROUPE_CUDA_BF16 || !at) return;
  bf16_ = static_cast<std::uint16_t*>(at);
  copy_.resize(static_cast<std::size_t>(count));
  train::float_from_bf16(bf16_, copy_.data(), count);
  data_ = copy_.data();
}

InOut::~InOut() {
  if (bf16_) train::bf16_from_float(copy_.data(), bf16_, static_cast<std::int64_t>(copy_.size()));
}

}  // namespace troupe::tests::fake
