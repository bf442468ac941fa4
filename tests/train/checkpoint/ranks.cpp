#include "tests/train/checkpoint/ranks.h"

#include <doctest/doctest.h>

#include <cstring>
#include <thread>

#include "runtime/base/check.h"
#include "runtime/base/hash.h"
#include "runtime/collective/cpu_communicator.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/tensor/convert.h"

namespace troupe::train::tests {

void run_ranks(int world_size, const std::function<void(collective::Communicator&)>& body) {
  auto links = collective::make_local_links(std::vector<int>(world_size, 0)).value();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank,
                          mine = std::move(links[static_cast<std::size_t>(rank)])]() mutable {
      collective::CommunicatorOptions options;
      options.rank = rank;
      options.world_size = world_size;
      options.default_timeout = std::chrono::seconds(30);
      const auto communicator = collective::make_cpu_communicator(options, std::move(mine)).value();
      body(*communicator);
    });
  }
  for (auto& thread : threads) thread.join();
}

TestState::TestState(std::int64_t step, std::int64_t scale) : step_(step) {
  const std::int64_t s = scale;
  add(weights_, "model.embed.weight", DType::kF32, {11 * s, 13});
  add(weights_, "model.norm.weight", DType::kF32, {13});
  add(weights_, "model.layers.0.weight", DType::kF32, {5 * s, 7, 3});
  add(weights_, "model.half.weight", DType::kBF16, {9 * s, 5});
  add(weights_, "model.scale", DType::kF32, {});
  std::map<std::string, TensorPiece> moments;
  for (const auto& [name, tensor] : weights_) {
    for (const char* prefix : {"exp_avg.", "exp_avg_sq."}) {
      add(optimizer_, prefix + name, tensor.dtype, tensor.shape);
    }
  }
}

void TestState::add(std::map<std::string, TensorPiece>& tensors, const std::string& name,
                    DType dtype, std::vector<std::int64_t> shape) {
  const auto size = tensor_bytes(dtype, shape).value();
  auto memory = std::make_unique<std::vector<std::byte>>(size);
  std::vector<float> values(size / dtype_size(dtype));
  const auto seed = xxh3_64(bytes_of(name)) % 1000;
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(step_) * 1000.0f + static_cast<float>((i * 7 + seed) % 997);
  }
  REQUIRE(convert_from_float(values, dtype, *memory).ok());
  tensors[name] = {name, dtype, shape, 0, static_cast<std::int64_t>(values.size()), *memory};
  memory_.push_back(std::move(memory));
}

std::pair<std::int64_t, std::int64_t> uneven_range(std::int64_t elements, int rank,
                                                   int world_size) {
  // Weights 1, 2, 3, …: the last rank holds most.
  const std::int64_t total = std::int64_t{world_size} * (world_size + 1) / 2;
  const auto cut = [&](std::int64_t r) { return elements * (r * (r + 1) / 2) / total; };
  return {cut(rank), cut(rank + 1)};
}

SaveContents TestState::contents(int rank, int world_size) const {
  SaveContents contents;
  contents.step = step_;
  const auto part = [&](const std::map<std::string, TensorPiece>& tensors) {
    std::vector<TensorPiece> pieces;
    for (const auto& [name, tensor] : tensors) {
      const auto [begin, end] = uneven_range(tensor.end, rank, world_size);
      if (begin == end) continue;
      TensorPiece piece = tensor;
      const auto width = static_cast<std::int64_t>(dtype_size(tensor.dtype));
      piece.begin = begin;
      piece.end = end;
      piece.data = tensor.data.subspan(static_cast<std::size_t>(begin * width),
                                       static_cast<std::size_t>((end - begin) * width));
      pieces.push_back(piece);
    }
    return pieces;
  };
  contents.weights = part(weights_);
  contents.optimizer = part(optimizer_);
  if (rank == 0) {
    contents.scheduler = {{"last_step", step_}};
    contents.rng_state = {{"seed", 42}};
    contents.cursor = {{"sample", step_}};
    contents.files = {{"config.json", "{}"}, {"trainer_state.json", "{}\n"}};
  }
  return contents;
}

void TestState::check(const TensorReader& reader, int world_size) const {
  std::vector<std::pair<std::string, TensorPiece>> all(weights_.begin(), weights_.end());
  CHECK(reader.weights().size() == weights_.size());
  if (reader.has_optimizer()) {
    CHECK(reader.optimizer().size() == optimizer_.size());
    all.insert(all.end(), optimizer_.begin(), optimizer_.end());
  }
  for (const auto& [name, tensor] : all) {
    CAPTURE(name);
    const auto* info = reader.find(name);
    REQUIRE(info);
    CHECK(info->shape == tensor.shape);
    CHECK(info->dtype == tensor.dtype);
    std::vector<float> expected(static_cast<std::size_t>(tensor.end));
    REQUIRE(convert_to_float(tensor.data, tensor.dtype, expected).ok());
    for (int rank = 0; rank < world_size; ++rank) {
      const auto [begin, end] = uneven_range(tensor.end, rank, world_size);
      std::vector<float> floats(static_cast<std::size_t>(end - begin));
      std::vector<std::uint16_t> halves(floats.size());
      const Status read = reader.read(name, begin, floats);
      REQUIRE_MESSAGE(read.ok(), read.to_string());
      REQUIRE(reader.read_bf16(name, begin, halves).ok());
      bool equal = true;
      for (std::size_t i = 0; i < floats.size(); ++i) {
        const float want = expected[static_cast<std::size_t>(begin) + i];
        equal = equal && floats[i] == want && halves[i] == float_to_bf16(want);
      }
      CHECK(equal);
    }
  }
}

std::vector<RankOutcome> save_with(const std::vector<FileSystem*>& files, const TestState& state,
                                   SaverOptions options,
                                   std::optional<Result<WrittenCheckpoint>>* written) {
  const int world = static_cast<int>(files.size());
  std::vector<RankOutcome> outcomes(files.size());
  const SystemClock clock;
  run_ranks(world, [&](collective::Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    CheckpointSaver saver(*files[rank], communicator, clock, options, Logger::discard());
    outcomes[rank].start = saver.start(state.contents(communicator.rank(), world));
    if (!outcomes[rank].start.ok()) return;
    const auto report = saver.seal().value();
    outcomes[rank].outcome = report.outcome;
    const Status waited = saver.wait(Deadline::after(std::chrono::seconds(30)));
    TROUPE_CHECK(waited.ok());
    auto result = saver.poll();
    TROUPE_CHECK(result.has_value() == (rank == 0 && report.outcome.ok()));
    if (rank == 0 && written) *written = std::move(result);
  });
  return outcomes;
}

SaverOptions test_options(CheckpointLayout layout) {
  SaverOptions options;
  options.output_dir = "out";
  options.run = "run";
  options.layout = layout;
  options.write_timeout = std::chrono::seconds(30);
  return options;
}

std::int64_t check_newest(FileSystem& files, std::int64_t scale, int world_size,
                          std::vector<RefusedCheckpoint>* refused) {
  std::vector<RefusedCheckpoint> local;
  auto& list = refused ? *refused : local;
  const auto good = newest_good_checkpoint(files, "out", &list).value();
  for (const auto& one : local) MESSAGE(one.reason.to_string());
  if (!good) return -1;
  const auto reader = TensorReader::open(files, *good).value();
  TestState(good->step, scale).check(reader, world_size);
  const auto state = read_checkpoint_state(files, *good).value();
  CHECK(json::find_integer(state.cursor, "sample") == good->step);
  return good->step;
}

}  // namespace troupe::train::tests
