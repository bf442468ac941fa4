// Blocks of launches as graphs: what is recorded, what becomes a graph, that nothing changes by it,
// and what happens where a graph cannot be had.

#include "train/cuda/operators/block_graphs.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>

#include "tests/train/cuda/device/device_fixture.h"
#include "tools/gpu_check/device_model.h"
#include "train/cuda/operators/cuda_operators.h"

namespace troupe::train::tests {
namespace {

using troupe::tests::fake_cuda_calls;
using troupe::tests::fake_cuda_inject;

constexpr std::int64_t kCount = 64;

// Of queries, keys and values that lie beside one another.
AttentionShape small_attention(std::int64_t length) {
  return {.batch = 1,
          .query_length = length,
          .key_length = length,
          .query_heads = 2,
          .key_heads = 2,
          .head_dim = 8,
          .query_stride = 48,
          .key_stride = 48,
          .key_batch_stride = 48 * length,
          .scale = 0.3f,
          .arithmetic = Arithmetic::kBf16};
}

struct GraphsFixture : DeviceFixture {
  explicit GraphsFixture(GraphOptions options = {.use = GraphOptions::Use::kAlways},
                         AttentionOptions attention = {},
                         const troupe::tests::FakeCudaOptions& fake = {})
      : DeviceFixture(fake),
        stream(CudaStream::create(device).value()),
        algorithms(std::in_place, device, 64 << 10),
        memory(DeviceMemory::allocate(device, 8 << 20, "tensors", MemoryPurpose::kActivations)
                   .value()),
        scratch(
            DeviceMemory::allocate(device, 8 << 20, "scratch", MemoryPurpose::kWorkspace).value()) {
    options.notice = [this](const std::string& text) { notices.push_back(text); };
    operators = CudaOperators::create(*stream, *algorithms, scratch->bytes(),
                                      {.attention = std::move(attention), .graphs = options})
                    .value();
  }
  ~GraphsFixture() {
    operators.reset();
    scratch.reset(), memory.reset(), algorithms.reset(), stream.reset();
  }
  float* floats(std::int64_t offset) { return reinterpret_cast<float*>(memory->data()) + offset; }
  BlockGraphs::Counts counts() const { return operators->graphs()->counts(); }

  void set(float* at, float value) {
    const std::vector<float> values(kCount, value);
    operators->upload(values.data(), at, kCount * sizeof(float));
  }
  float get(const float* at) {
    std::vector<float> values(kCount);
    operators->download(at, values.data(), kCount * sizeof(float));
    CHECK(std::all_of(values.begin(), values.end(), [&](float x) { return x == values[0]; }));
    return values[0];
  }
  // y += x, `times` over, as one block.
  void add_block(int block, const float* x, float* y, int times = 3) {
    const OperatorBlock scope(*operators, block);
    for (int i = 0; i < times; ++i) operators->add(y, x, y, kCount);
  }

  std::optional<CudaStream> stream;
  std::optional<GemmAlgorithms> algorithms;
  std::optional<DeviceMemory> memory, scratch;
  std::vector<std::string> notices;
  std::unique_ptr<CudaOperators> operators;
};

TEST_CASE("a record keeps calls by value, makes them when it runs, and tells others from them") {
  GraphsFixture f;
  LaunchRecord record(f.device->library(), f.stream->get());
  const TroupeCudaTable& table = record.table();
  float *a = f.floats(0), *b = f.floats(1024);
  f.set(a, 1), f.set(b, 2);
  const std::int64_t adds = fake_cuda_calls("add");
  const auto keep = [&](auto&& calls) {
    record.open();
    calls();
    record.close();
    return std::vector<std::uint64_t>(record.words().begin(), record.words().end());
  };
  const auto add = [&](const float* x, std::int64_t count) {
    CHECK(table.add(record.stream(), TROUPE_CUDA_F32, x, b, b, count) == TROUPE_CUDA_OK);
  };
  const auto words = keep([&] { add(a, kCount); });
  CHECK(words == keep([&] { add(a, kCount); }));
  CHECK(words != keep([&] { add(a + 4, kCount); }));
  CHECK(words != keep([&] { add(a, kCount - 1); }));
  CHECK(words != keep([&] { add(a, kCount), add(a, kCount); }));
  CHECK(fake_cuda_calls("add") == adds);

  // What describes a call may be gone when it is made.
  const auto product = [&](std::int64_t n) {
    const TroupeCudaGemm gemm{
        .m = 2, .n = n, .k = 2, .a_stride = 2, .b_stride = n, .c_stride = n, .alignment_bytes = 4};
    TroupeCudaAlgorithm algorithm{};
    std::int32_t found = 0;
    REQUIRE(table.gemm_algorithms(f.device->context(), &gemm, 0, 1, &algorithm, &found) ==
            TROUPE_CUDA_OK);
    REQUIRE(table.gemm(record.stream(), &gemm, &algorithm, a, a, b, nullptr, 0) == TROUPE_CUDA_OK);
  };
  CHECK(keep([&] { product(2); }) != keep([&] { product(3); }));
  keep([&] { product(2), add(b, kCount); });
  CHECK(record.calls() == 2);
  const char* failed = nullptr;
  CHECK(record.run(&failed) == TROUPE_CUDA_OK);
  std::vector<float> got(kCount);
  f.operators->download(b, got.data(), kCount * sizeof(float));
  CHECK(got[3] == 4.0f);  // 1·1 + 1·1, twice
  CHECK(got[4] == 4.0f);  // untouched by the product: 2 + 2

  // Closed, it calls at once; who asks whether all is done makes what was kept.
  add(a, kCount);
  CHECK(fake_cuda_calls("add") == adds + 2);
  record.open();
  add(a, kCount);
  while (table.stream_query(record.stream()) == TROUPE_CUDA_NOT_READY) std::this_thread::yield();
  CHECK(fake_cuda_calls("add") == adds + 3);
  CHECK_FALSE(record.is_open());

  // What fails is named.
  record.open();
  record.name("first");
  add(a, kCount);
  record.name("second");
  CHECK(table.add(record.stream(), TROUPE_CUDA_F32, nullptr, b, b, kCount) == TROUPE_CUDA_OK);
  record.close();
  CHECK(record.run(&failed) == TROUPE_CUDA_INVALID);
  CHECK(std::string(failed) == "second");
}

TEST_CASE("a block that comes again is a graph from its second time on") {
  GraphsFixture f;
  float *x = f.floats(0), *y = f.floats(1024), *z = f.floats(2048);
  f.set(x, 1), f.set(y, 0), f.set(z, 0);
  for (int i = 0; i < 5; ++i) f.add_block(0, x, y);
  CHECK(f.get(y) == 15);
  CHECK(f.counts().run == 1);
  CHECK(f.counts().captured == 1);
  CHECK(f.counts().launched == 4);
  // The bytes of the time of the launch, not of the capture.
  f.set(x, 2);
  f.add_block(0, x, y);
  CHECK(f.get(y) == 21);
  // Elsewhere, or in another block, it is another one.
  f.add_block(0, x, z);
  f.add_block(1, x, y);
  CHECK(f.counts().run == 3);
  CHECK(f.get(z) == 6);
  CHECK(f.get(y) == 27);
  CHECK(f.operators->failure().ok());
  CHECK(f.notices.empty());
}

TEST_CASE("of a block's graphs the one that was not used for longest goes") {
  GraphsFixture f({.use = GraphOptions::Use::kAlways, .graphs_per_block = 2});
  float* x = f.floats(0);
  f.set(x, 1);
  float* places[] = {f.floats(1024), f.floats(2048), f.floats(3072)};
  for (float* y : places) f.set(y, 0);
  for (const int place : {0, 0, 1, 1, 0, 2, 2}) f.add_block(0, x, places[place]);
  CHECK(f.counts().captured == 3);
  CHECK(f.counts().evicted == 1);
  const std::int64_t run = f.counts().run;
  f.add_block(0, x, places[0]);
  CHECK(f.counts().run == run);  // kept
  f.add_block(0, x, places[1]);
  CHECK(f.counts().run == run + 1);  // gone
  CHECK(f.get(places[0]) == 12);
  CHECK(f.get(places[1]) == 9);
  CHECK(f.get(places[2]) == 6);
}

TEST_CASE("a block that changes all the time is captured no more") {
  GraphsFixture f({.use = GraphOptions::Use::kAlways, .graphs_per_block = 1});
  float *x = f.floats(0), *y = f.floats(1024);
  f.set(x, 1), f.set(y, 0);
  float expected = 0;
  for (int round = 0; round < 10; ++round) {
    for (const int times : {1, 1, 2, 2, 3, 3}) {
      f.add_block(0, x, y, times);
      expected += static_cast<float>(times);
    }
  }
  CHECK(f.get(y) == expected);
  CHECK(f.counts().captured == 8);
  CHECK(f.operators->failure().ok());
}

TEST_CASE("uploads, downloads and waits within a block come where they stand") {
  GraphsFixture f;
  float *x = f.floats(0), *y = f.floats(1024);
  f.set(x, 1), f.set(y, 0);
  for (int i = 0; i < 3; ++i) {
    const OperatorBlock block(*f.operators, 0);
    f.operators->add(y, x, y, kCount);
    CHECK(f.get(y) == static_cast<float>(3 * i + 1));
    f.operators->add(y, x, y, kCount);
    CHECK(f.operators->synchronize().ok());
    f.set(x, 1);
    f.operators->add(y, x, y, kCount);
  }
  CHECK(f.get(y) == 9);
  CHECK(f.counts().captured == 0);
}

TEST_CASE("a block that an exception leaves does nothing") {
  GraphsFixture f;
  float *x = f.floats(0), *y = f.floats(1024);
  f.set(x, 1), f.set(y, 0);
  struct Left {};
  const auto leave = [&] {
    const OperatorBlock block(*f.operators, 0);
    f.operators->add(y, x, y, kCount);
    throw Left();
  };
  CHECK_THROWS_AS(leave(), Left);
  CHECK(f.get(y) == 0);
  f.add_block(0, x, y);
  CHECK(f.get(y) == 3);
}

TEST_CASE("where a graph cannot be captured one notice says so, and the run goes on without") {
  for (const char* function : {"graph_capture_begin", "graph_capture_end"}) {
    CAPTURE(function);
    GraphsFixture f;
    float *x = f.floats(0), *y = f.floats(1024);
    f.set(x, 1), f.set(y, 0);
    f.add_block(0, x, y);
    f.add_block(0, x, y);
    fake_cuda_inject({.function = function, .code = TROUPE_CUDA_FAILED, .text = "no room"});
    for (int i = 0; i < 4; ++i) f.add_block(1, x, y);
    for (int i = 0; i < 4; ++i) f.add_block(i, x, y);
    CHECK(f.get(y) == 30);
    CHECK(f.operators->failure().ok());
    REQUIRE(f.notices.size() == 1);
    CHECK(f.notices[0] ==
          "CUDA graphs are not used: GPU 0 (Fake GPU of tests): capturing a block: no room");
    CHECK(f.counts().launched == 1);
    CHECK_FALSE(f.operators->graphs()->in_use());
  }
}

TEST_CASE(
    "what a stream that is captured is not asked breaks the capture off, and it serves again") {
  GraphsFixture f;
  const TroupeCudaTable& table = f.device->table();
  TroupeCudaStream* stream = f.stream->get();
  TroupeCudaGraph* graph = nullptr;
  REQUIRE(table.graph_capture_begin(stream) == TROUPE_CUDA_OK);
  CHECK(table.stream_query(stream) == TROUPE_CUDA_FAILED);
  CHECK(table.graph_capture_end(stream, &graph) == TROUPE_CUDA_FAILED);
  CHECK(graph == nullptr);
  CHECK(f.stream->wait("nothing").ok());
}

TEST_CASE("a device that is lost when a graph is launched is the operators' failure") {
  GraphsFixture f;
  float *x = f.floats(0), *y = f.floats(1024);
  f.set(x, 1), f.set(y, 0);
  for (int i = 0; i < 3; ++i) f.add_block(0, x, y);
  CHECK(f.get(y) == 9);
  troupe::tests::fake_cuda_lose_device(0);
  f.add_block(0, x, y);
  CHECK(f.operators->failure().code() == Code::kUnavailable);
  CHECK(says(f.operators->failure(), "a block's graph (troupe.cuda_graphs: false does without)"));
  CHECK(says(f.operators->failure(), "the device was lost"));
  f.add_block(1, x, y);  // nothing runs any more
}

TEST_CASE("the tests' GPU tells of graphs whose memory has gone") {
  GraphsFixture f;
  const TroupeCudaTable& table = f.device->table();
  TroupeCudaGraph* graph = nullptr;
  {
    const DeviceMemory gone =
        DeviceMemory::allocate(f.device, 4096, "what goes", MemoryPurpose::kOther).value();
    REQUIRE(table.graph_capture_begin(f.stream->get()) == TROUPE_CUDA_OK);
    REQUIRE(table.fill(f.stream->get(), gone.data(), 1, 4096) == TROUPE_CUDA_OK);
    REQUIRE(table.graph_capture_end(f.stream->get(), &graph) == TROUPE_CUDA_OK);
    CHECK(table.graph_launch(f.stream->get(), graph) == TROUPE_CUDA_OK);
    CHECK(f.stream->wait("a fill").ok());
  }
  CHECK(table.graph_launch(f.stream->get(), graph) == TROUPE_CUDA_INVALID);
  CHECK(table.graph_destroy(graph) == TROUPE_CUDA_OK);
}

TEST_CASE("with a plan of attention's go the graphs that use it") {
  GraphsFixture f({.use = GraphOptions::Use::kAlways}, {.plans_max = 1}, {.cudnn_version = 91900});
  const auto attend = [&](int block, std::int64_t length) {
    const AttentionShape shape = small_attention(length);
    float* qkv = f.floats(0);
    const OperatorBlock scope(*f.operators, block);
    f.operators->attention_forward(shape, qkv, qkv + 16, qkv + 32, f.floats(100'000), nullptr);
  };
  std::vector<float> numbers(128 * 48);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = static_cast<float>(i % 37) / 37.0f - 0.5f;
  f.operators->upload(numbers.data(), f.floats(0), numbers.size() * sizeof(float));
  const auto result = [&] {
    std::vector<float> out(128 * 16);
    f.operators->download(f.floats(100'000), out.data(), out.size() * sizeof(float));
    return out;
  };
  // Rows behind the first 64 are written by nobody: not a number, where memory is new.
  f.operators->zero(f.floats(100'000), 128 * 16);
  attend(0, 64);
  const std::vector<float> expected = result();
  attend(0, 64);
  attend(0, 64);
  CHECK(f.counts().launched == 2);
  attend(1, 128);  // drops the first one's plan
  CHECK(fake_cuda_calls("attention_plan_destroy") == 1);
  f.operators->zero(f.floats(100'000), 128 * 16);
  attend(0, 64);
  CHECK_MESSAGE(f.operators->failure().ok(), f.operators->failure().to_string());
  CHECK(result() == expected);
  CHECK(f.operators->attention_passes().own == 0);
}

TEST_CASE("plans that are made before there is memory drop others, where blocks are graphs too") {
  GraphsFixture f({.use = GraphOptions::Use::kAlways}, {.plans_max = 1}, {.cudnn_version = 91900});
  f.operators->begin_planning(4 << 20);
  for (const std::int64_t length : {64, 128}) {
    const OperatorBlock scope(*f.operators, 0);
    const AttentionShape shape = small_attention(length);
    float* qkv = f.floats(0);
    f.operators->attention_forward(shape, qkv, qkv + 16, qkv + 32, f.floats(100'000), nullptr);
  }
  const Status planned = f.operators->end_planning();
  CHECK_MESSAGE(planned.ok(), planned.to_string());
  CHECK(fake_cuda_calls("attention_plan_create") == 2);
  CHECK(fake_cuda_calls("attention_plan_destroy") == 1);
}

// Time goes by where blocks are launched: so much for each call, so much for a graph.
class LaunchClock final : public Clock {
 public:
  LaunchClock(int call_us, int graph_us) : call_us_(call_us), graph_us_(graph_us) {}
  TimePoint now() const override {
    return TimePoint(std::chrono::microseconds(call_us_ * fake_cuda_calls("add") +
                                               graph_us_ * fake_cuda_calls("graph_launch")));
  }
  std::int64_t unix_time_us() const override { return 0; }

 private:
  int call_us_, graph_us_;
};

TEST_CASE("where it is to be found out, the faster way stays") {
  for (const bool faster : {true, false}) {
    const LaunchClock clock(10, faster ? 12 : 29);
    GraphsFixture f({.use = GraphOptions::Use::kWhereFaster, .clock = &clock});
    float *x = f.floats(0), *y = f.floats(1024);
    f.set(x, 1), f.set(y, 0);
    const int blocks = 2 + 2 * static_cast<int>(GraphTrial::kPairs);
    for (int i = 0; i < blocks; ++i) f.add_block(0, x, y);
    CHECK(f.notices.empty());
    const std::int64_t launched = f.counts().launched;
    for (int i = 0; i < 5; ++i) f.add_block(0, x, y);
    CHECK(f.get(y) == static_cast<float>(3 * (blocks + 5)));
    REQUIRE(f.notices.size() == 1);
    CHECK(f.notices[0] == (faster ? "CUDA graphs are used: a block of launches takes 12 us with "
                                    "one and 30 us without"
                                  : "CUDA graphs are not used: a block of launches takes 29 us "
                                    "with one and 30 us without"));
    CHECK(f.counts().launched == launched + (faster ? 5 : 0));
    CHECK(f.operators->graphs()->in_use() == faster);
  }
}

TEST_CASE("a trial ends where blocks are seldom the same") {
  GraphTrial trial;
  for (std::int64_t i = 1; i < GraphTrial::kBlocksMax; ++i) trial.count_block();
  CHECK_FALSE(trial.verdict());
  trial.add(std::chrono::milliseconds(2), std::chrono::milliseconds(1));
  CHECK_FALSE(trial.verdict());
  trial.count_block();
  REQUIRE(trial.verdict());
  CHECK_FALSE(trial.verdict()->pays);
  CHECK(trial.verdict()->why.find("of 4096 blocks only 1 were the same twice") == 0);
}

// Of a step of a model: whatever is recomputed, whichever lengths come.
TEST_CASE("models' steps with graphs have the bits of those without, in fp8, too") {
  using namespace troupe::tools;
  for (const Recompute recompute :
       {Recompute::kLayers, Recompute::kNothing, Recompute::kCheapOperators}) {
    troupe::tests::fake_cuda_reset({.cudnn_version = 91900});
    {
      gpu::Bench bench(CudaLibrary::over(troupe::tests::fake_cuda_table()), {.rehearsal = true});
      for (const gpu::NamedConfig& named : gpu::small_models(true)) {
        CAPTURE(named.name);
        std::vector<float> parameters[2];
        std::vector<double> losses[2];
        gpu::Gpu* device = bench.gpu().value();
        gpu::TrainOptions options{.compute = DType::kBF16,
                                  .activations = DType::kBF16,
                                  .rows = 2,
                                  .length = 12,
                                  .recompute = recompute,
                                  .fp8 = recompute == Recompute::kCheapOperators};
        for (const bool graphs : {false, true}) {
          device = bench.gpu().value();
          options.graphs = graphs;
          const std::int64_t products = fake_cuda_calls("gemm_scaled");
          const auto model = gpu::gpu_model(named.config, options, *device).value();
          REQUIRE(gpu::set_some_parameters(*model).ok());
          int step = 0;
          for (const std::int64_t length : {12, 12, 5, 12, 9, 5, 12, 5}) {
            ++step;
            const gpu::CountingBatch batch(2, length, named.config.vocab_size, step, step % 3 == 2);
            REQUIRE(model->zero_gradients().ok());
            const auto sum = model->forward_backward(batch.micro(), 0.05f);
            REQUIRE_MESSAGE(sum.ok(), sum.status().to_string());
            losses[graphs].push_back(sum->loss_sum);
            REQUIRE(model->update({.learning_rate = 1e-3, .step = step}).ok());
          }
          parameters[graphs] = model->parameters().value();
          CHECK((fake_cuda_calls("gemm_scaled") > products) == options.fp8);
        }
        CHECK(losses[1] == losses[0]);
        CHECK(std::memcmp(parameters[1].data(), parameters[0].data(),
                          parameters[0].size() * sizeof(float)) == 0);
        CHECK(operators_of(*device, options).graphs()->counts().launched > 0);
      }
    }
    CHECK(troupe::tests::fake_cuda_left().empty());
  }
}

}  // namespace
}  // namespace troupe::train::tests
