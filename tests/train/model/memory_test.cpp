// What a pass does not touch and does not allocate.

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/train/model/model_fixture.h"

namespace {

// Of this whole program: C++ allocations of kLargeBytes or more, oneDNN's too.
constexpr std::size_t kLargeBytes = 2048;
std::atomic<std::int64_t> large_allocations{0};

void* counted(std::size_t bytes, std::size_t alignment) {
  if (bytes >= kLargeBytes) ++large_allocations;
  void* data = nullptr;
  if (::posix_memalign(&data, std::max(alignment, sizeof(void*)), std::max<std::size_t>(bytes, 1)))
    throw std::bad_alloc();
  return data;
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, std::size_t, std::align_val_t) noexcept { std::free(data); }

namespace troupe::train::tests {
namespace {

ModelConfig memory_config() {
  return ModelConfig::parse(R"({"model_type": "llama", "vocab_size": 900, "hidden_size": 96,
      "intermediate_size": 200, "num_hidden_layers": 2, "num_attention_heads": 6,
      "num_key_value_heads": 2, "tie_word_embeddings": true})",
                            "config.json")
      .value();
}

TEST_CASE("after the first step a pass allocates nothing that grows with the model") {
  const ModelConfig config = memory_config();
  const Batch batch(2, 150, 900);
  ModelFixture f(config);
  f.initialize(3);
  Activations activations(config, {2, 150, true, Recompute::kNothing}, *f.operators);
  const auto pass = [&] {
    REQUIRE(f.model->forward_backward(batch.micro, f.units, CrossEntropyLoss(), 0.01f, activations)
                .ok());
  };
  const std::int64_t before_first = large_allocations;
  pass();
  CHECK(large_allocations > before_first);  // the counter counts
  const std::int64_t after_first = large_allocations;
  const struct mallinfo2 held = mallinfo2();
  for (int step = 0; step < 3; ++step) pass();
  CHECK(large_allocations == after_first);
  const struct mallinfo2 now = mallinfo2();
  CHECK(now.uordblks + now.hblkhd == held.uordblks + held.hblkhd);
}

TEST_CASE("activations in bf16 take half the memory, and a CPU refuses them") {
  const ModelConfig config = memory_config();
  for (const Recompute recompute :
       {Recompute::kNothing, Recompute::kCheapOperators, Recompute::kLayers}) {
    ActivationOptions options{64, 1024, true, recompute, DType::kBF16, DType::kF32};
    const auto wide = static_cast<double>(Activations::bytes_needed(config, options));
    options.type = DType::kBF16;
    const auto narrow = static_cast<double>(Activations::bytes_needed(config, options));
    // Logits, statistics and tokens stay as they are.
    CHECK(narrow < 0.56 * wide);
    CHECK(narrow > 0.50 * wide);
    ModelFixture f(config);
    const auto refused = Activations::allocate(config, options, *f.operators);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.status().code() == Code::kInvalidArgument);
    CHECK(refused.status().message().find("computes with fp32 activations (a CPU") !=
          std::string::npos);
  }
}

TEST_CASE("logits are computed for tokens with a target alone") {
  const ModelConfig config = memory_config();
  Batch batch(2, 150, 900);
  // Four of five tokens of each row are a prompt.
  for (std::size_t i = 0; i < batch.labels.size(); ++i)
    batch.labels[i] = i % 150 < 120 ? kIgnoreLabel : batch.ids[i];
  const std::int64_t targets = count_targets(batch.micro);
  REQUIRE(targets == 60);
  ModelFixture f(config);
  f.initialize(3);
  Activations activations(config, {2, 150, true, Recompute::kNothing}, *f.operators);
  REQUIRE(activations.head_rows == 300);
  constexpr float kUntouched = 12345.0f;
  for (const bool gradient : {false, true}) {
    CAPTURE(gradient);
    std::fill_n(activations.logits, activations.head_rows * config.vocab_size, kUntouched);
    std::fill_n(activations.head_gradient.fp32(), activations.head_rows * config.hidden_size,
                kUntouched);
    const LossSum sum =
        gradient
            ? f.model
                  ->forward_backward(batch.micro, f.units, CrossEntropyLoss(), 0.01f, activations)
                  .value()
            : f.model->forward(batch.micro, f.units, CrossEntropyLoss(), activations).value();
    CHECK(sum.target_count == targets);
    const auto untouched = [&](const float* data, std::int64_t count) {
      return std::count(data, data + count, kUntouched);
    };
    const std::int64_t masked = activations.head_rows - targets;
    CHECK(untouched(activations.logits, activations.head_rows * config.vocab_size) ==
          masked * config.vocab_size);
    CHECK(untouched(activations.head_gradient.fp32(), activations.head_rows * config.hidden_size) ==
          (gradient ? masked : activations.head_rows) * config.hidden_size);
  }
}

}  // namespace
}  // namespace troupe::train::tests
