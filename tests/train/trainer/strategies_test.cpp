// Whole runs under every strategy: equal models, equal losses, exchangeable
// checkpoints, PyTorch's losses.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/train/trainer/run_fixture.h"
#include "train/sharding/strategy.h"

namespace troupe::train::tests {
namespace {

struct Named {
  std::string strategy;
  std::int64_t replicate = 0, shard = 0;
};

std::vector<Named> strategies(int world) {
  std::vector<Named> all;
  for (const StrategyRow& row : strategy_table()) {
    if (!row.hybrid) all.push_back({std::string(row.name)});
    if (row.hybrid && world == 4) all.push_back({std::string(row.name), 2, 2});
  }
  return all;
}

std::function<void(RunBundle&)> under(const Named& named, std::int64_t steps,
                                      Deterministic deterministic = Deterministic::kStrategy) {
  return [=](RunBundle& bundle) {
    bundle.config.sharding.strategy = named.strategy;
    bundle.config.sharding.mesh_replicate = named.replicate;
    bundle.config.sharding.mesh_shard = named.shard;
    bundle.config.sharding.deterministic = deterministic;
    bundle.config.training.max_steps = steps;
    bundle.config.training.save_strategy = IntervalStrategy::kNo;
  };
}

std::string model_of(const std::string& output_dir) {
  const std::string bytes = file(output_dir + "/model.safetensors");
  REQUIRE(bytes.size() > 1000);
  return bytes;
}

void one_model_file(std::int64_t steps) {
  for (const int world : {2, 4}) {
    troupe::tests::TemporaryDirectory dir;
    train(dir.file("first"),
          {.world = world, .batch = 1, .accumulation = 2, .change = under({"ddp"}, steps)});
    const std::string expected = model_of(dir.file("first"));
    for (const Named& named : strategies(world)) {
      for (const int threads : {1, 2}) {
        CAPTURE(named.strategy);
        CAPTURE(world);
        CAPTURE(threads);
        const std::string name = named.strategy + std::to_string(threads);
        train(dir.file(name), {.world = world,
                               .threads = threads,
                               .batch = 1,
                               .accumulation = 2,
                               .overlaps = threads == 2,
                               .change = under(named, steps)});
        CHECK(model_of(dir.file(name)) == expected);
        CHECK(step_lines(dir.file(name)) == step_lines(dir.file("first")));
      }
    }
  }
}

TEST_CASE("with accumulation 2: one model file for all strategies, threads and runs") {
  one_model_file(6);
}

TEST_CASE("long: 50 steps, one model file for all strategies, threads and runs" * doctest::skip()) {
  one_model_file(50);
}

TEST_CASE("across world sizes 1, 2, 3, 4 there is one model file") {
  troupe::tests::TemporaryDirectory dir;
  std::string expected;
  for (const int world : {1, 2, 3, 4}) {
    for (const Named& named : strategies(world)) {
      CAPTURE(named.strategy);
      CAPTURE(world);
      const std::string name = named.strategy + std::to_string(world);
      train(dir.file(name), {.world = world,
                             .batch = 1,
                             .accumulation = 12 / world,
                             .change = under(named, 10, Deterministic::kAcrossWorldSizes)});
      if (expected.empty()) expected = model_of(dir.file(name));
      CHECK(model_of(dir.file(name)) == expected);
      CHECK(steps(dir.file(name)).back().loss == steps(dir.file("ddp1")).back().loss);
    }
  }
}

// Data, weights and losses of tests/golden/model/train_llama: transformers'
// Llama with torch's AdamW, micro-batch i of a step on rank i mod world.
struct Golden {
  json::Value text;
  std::string directory = troupe::tests::source_dir() + "/tests/golden/model/train_llama";
  Golden() {
    PosixFileSystem files;
    text = json::parse(files.read(directory + "/golden.json", 1 << 20).value(), "golden.json",
                       {.bytes_max = 1 << 20})
               .value();
  }
  std::vector<double> numbers(const char* key) const {
    std::vector<double> values;
    for (const auto& value : text.at(key).as_array()) values.push_back(value.to_number<double>());
    return values;
  }
};

void golden_bundle(const Golden& golden, RunBundle& bundle) {
  PosixFileSystem files;
  bundle.model = ModelConfig::parse(files.read(golden.directory + "/config.json", 1 << 20).value(),
                                    "config.json")
                     .value();
  const auto length = static_cast<std::size_t>(golden.text.at("length").as_int64());
  TokenDataset dataset(TokenDataset::Kind::kPacked, 0);
  for (const auto& step : golden.text.at("steps_data").as_array()) {
    for (const auto& batch : step.as_array()) {
      std::vector<TokenId> ids;
      std::vector<std::int32_t> labels;
      for (const auto& id : batch.at("ids").as_array()) ids.push_back(id.to_number<std::int32_t>());
      for (const auto& label : batch.at("labels").as_array())
        labels.push_back(label.to_number<std::int32_t>());
      for (std::size_t at = 0; at < ids.size(); at += length) {
        const auto part = static_cast<std::int32_t>(length);
        dataset.append(std::span(ids).subspan(at, length), std::span(labels).subspan(at, length),
                       std::span(&part, 1));
      }
    }
  }
  bundle.dataset = std::move(dataset);
  auto& config = bundle.config;
  config.model.train_from_scratch = false;
  config.model.model_name_or_path = golden.directory;
  config.data.disable_shuffling = true;
  auto& training = config.training;
  const auto& adamw = golden.text.at("adamw");
  training.max_steps = golden.text.at("steps").as_int64();
  training.learning_rate = adamw.at("lr").to_number<double>();
  training.adam_beta1 = adamw.at("beta1").to_number<double>();
  training.adam_beta2 = adamw.at("beta2").to_number<double>();
  training.adam_epsilon = adamw.at("eps").to_number<double>();
  training.weight_decay = adamw.at("weight_decay").to_number<double>();
  training.max_grad_norm = golden.text.at("max_norm").to_number<double>();
  training.warmup_steps = golden.text.at("warmup_steps").to_number<double>();
  training.lr_scheduler_type = "linear";
}

TEST_CASE("20 steps of every strategy have PyTorch's losses") {
  const Golden golden;
  auto losses = golden.numbers("losses"), norms = golden.numbers("grad_norms");
  // The golden values are means over the targets; transformers divides by all labels. (The
  // gradients are clipped, so that updates do not depend on it.)
  RunBundle whole;
  golden_bundle(golden, whole);
  for (std::uint32_t i = 0; i < losses.size(); ++i) {
    std::vector<std::uint32_t> samples(8);
    std::iota(samples.begin(), samples.end(), 8 * i);
    const TokenBatch batch = collate(whole.dataset, samples);
    const double share =
        static_cast<double>(count_target_tokens(batch)) / static_cast<double>(count_labels(batch));
    losses[i] *= share;
    norms[i] *= share;
  }
  troupe::tests::TemporaryDirectory dir;
  for (const int world : {1, 2, 4}) {
    for (const Named& named : strategies(world)) {
      CAPTURE(named.strategy);
      CAPTURE(world);
      const std::string name = named.strategy + std::to_string(world);
      train(
          dir.file(name),
          {.world = world, .batch = 2, .accumulation = 4 / world, .change = [&](RunBundle& bundle) {
             under(named, 20)(bundle);
             golden_bundle(golden, bundle);
           }});
      const auto got = steps(dir.file(name));
      REQUIRE(got.size() == losses.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        CHECK(got[i].loss == doctest::Approx(losses[i]).epsilon(1e-4));
        CHECK(got[i].grad_norm == doctest::Approx(norms[i]).epsilon(1e-3));
      }
    }
  }
}

TEST_CASE(
    "a ZeRO-3 checkpoint of four ranks goes on as DDP on two and FSDP on "
    "three") {
  for (const CheckpointFormat format : {CheckpointFormat::kHf, CheckpointFormat::kSharded}) {
    troupe::tests::TemporaryDirectory dir;
    const auto change = [&](const std::string& strategy, Deterministic deterministic) {
      return [=](RunBundle& bundle) {
        under({strategy}, 12, deterministic)(bundle);
        bundle.config.training.save_strategy = IntervalStrategy::kSteps;
        bundle.config.training.save_steps = 6;
        bundle.config.training.checkpoint_format = format;
      };
    };
    const auto across = Deterministic::kAcrossWorldSizes;
    train(dir.file("oracle"),
          {.world = 4, .batch = 1, .accumulation = 3, .change = change("zero3", across)});
    const auto expected = steps(dir.file("oracle"));
    const std::string from = dir.file("oracle/checkpoint-6");
    for (const auto& [strategy, world] : {std::pair{"ddp", 2}, std::pair{"fsdp", 3}}) {
      CAPTURE(strategy);
      train(dir.file(strategy), {.world = world,
                                 .batch = 1,
                                 .accumulation = 12 / world,
                                 .resume = from,
                                 .change = change(strategy, across)});
      const auto got = steps(dir.file(strategy));
      REQUIRE(got.size() == 6);
      for (std::size_t i = 0; i < got.size(); ++i) {
        CHECK(got[i].step == expected[i + 6].step);
        CHECK(got[i].loss == expected[i + 6].loss);
      }
      CHECK(model_of(dir.file(strategy)) == model_of(dir.file("oracle")));
    }
    // Summed in another order: equal to 1e-5.
    train(dir.file("plain"), {.world = 2,
                              .batch = 1,
                              .accumulation = 6,
                              .resume = from,
                              .change = change("ddp", Deterministic::kStrategy)});
    const auto plain = steps(dir.file("plain"));
    for (std::size_t i = 0; i < plain.size(); ++i)
      CHECK(plain[i].loss == doctest::Approx(expected[i + 6].loss).epsilon(1e-5));
  }
}

TEST_CASE("bf16 and pure_bf16 learn under every strategy, with equal models") {
  for (const bool pure : {false, true}) {
    troupe::tests::TemporaryDirectory dir;
    std::string expected;
    for (const Named& named : strategies(2)) {
      CAPTURE(named.strategy);
      train(dir.file(named.strategy), {.world = 2, .change = [&](RunBundle& bundle) {
                                         under(named, 12)(bundle);
                                         bundle.config.model.compute = Precision::kBfloat16;
                                         if (pure) bundle.config.model.state = Precision::kBfloat16;
                                       }});
      const auto losses = steps(dir.file(named.strategy));
      CHECK(losses.back().loss < 0.9 * losses.front().loss);
      if (expected.empty()) expected = model_of(dir.file(named.strategy));
      CHECK(model_of(dir.file(named.strategy)) == expected);
    }
  }
}

constexpr std::int32_t kDamagedToken = 77;

// The golden model with an infinite embedding of one token: only who reads that token is struck.
void write_damaged_model(const Golden& golden, const std::string& folder) {
  PosixFileSystem files;
  REQUIRE(files.create_directories(folder).ok());
  const std::string config = files.read(golden.directory + "/config.json", 1 << 20).value();
  REQUIRE(write_file_atomically(files, folder + "/config.json", config).ok());
  std::string weights = files.read(golden.directory + "/model.safetensors", 1 << 20).value();
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, weights.data(), 8);
  const auto header = json::parse(weights.substr(8, header_bytes), "header").value();
  const auto& embedding = header.at("model.embed_tokens.weight");
  const auto width = static_cast<std::size_t>(embedding.at("shape").as_array()[1].as_int64());
  const auto begin =
      static_cast<std::size_t>(embedding.at("data_offsets").as_array()[0].as_int64());
  REQUIRE(embedding.at("dtype").as_string() == "BF16");
  const std::uint16_t infinite = 0x7f80;
  std::memcpy(weights.data() + 8 + header_bytes + begin + kDamagedToken * width * sizeof infinite,
              &infinite, sizeof infinite);
  REQUIRE(write_file_atomically(files, folder + "/model.safetensors", weights).ok());
}

TEST_CASE("evaluation, the best model and early stopping are the same under every strategy") {
  for (const int world : {2, 4}) {
    troupe::tests::TemporaryDirectory dir;
    std::string expected;
    for (const Named& named : strategies(world)) {
      CAPTURE(named.strategy);
      auto ranks = make_ranks(dir.file(named.strategy),
                              {.world = world, .batch = 1, .change = [&](RunBundle& bundle) {
                                 under(named, 12)(bundle);
                                 bundle.eval = bundle.dataset;
                                 auto& config = bundle.config;
                                 config.training.save_strategy = IntervalStrategy::kSteps;
                                 config.training.save_steps = 2;
                                 config.training.save_total_limit = 2;
                                 auto& evaluation = config.evaluation;
                                 evaluation.strategy = IntervalStrategy::kSteps;
                                 evaluation.eval_steps = 2;
                                 evaluation.per_device_eval_batch_size = 3;
                                 evaluation.load_best_model_at_end = true;
                                 evaluation.early_stopping_steps = 2;
                                 // Too fast to go on getting better.
                                 config.training.learning_rate = 0.2;
                               }});
      for (const Status& status : run_generation(*ranks, 1))
        REQUIRE_MESSAGE(status.ok(), status.to_string());
      const auto& losses = ranks->observers[0].eval_losses;
      REQUIRE(losses.size() >= 3);
      const auto best = std::min_element(losses.begin(), losses.end());
      PosixFileSystem files;
      const std::string kept = dir.file(named.strategy + "/checkpoint-" +
                                        std::to_string(2 * (best - losses.begin() + 1)));
      CHECK(model_of(dir.file(named.strategy)) == model_of(kept));
      if (expected.empty()) expected = model_of(dir.file(named.strategy));
      CHECK(model_of(dir.file(named.strategy)) == expected);
      CHECK(files.exists(dir.file(named.strategy + "/eval_results.json")));
    }
  }
}

TEST_CASE("a step whose gradients are not finite is skipped by all, and named") {
  const Golden golden;
  for (const Named& named : {Named{"ddp"}, Named{"zero3"}}) {
    troupe::tests::TemporaryDirectory dir;
    const std::string folder = dir.file("model");
    write_damaged_model(golden, folder);
    auto ranks =
        make_ranks(dir.file("out"), {.world = 2, .change = [&](RunBundle& bundle) {
                                       under(named, 12)(bundle);
                                       golden_bundle(golden, bundle);
                                       TokenDataset dataset(TokenDataset::Kind::kPretrain, 0);
                                       for (int i = 0; i < 40; ++i) {
                                         std::vector<TokenId> ids(16, 5);
                                         if (i == 4 * 2 + 2)
                                           ids[3] = kDamagedToken;  // rank 1 in step 3
                                         dataset.append(ids);
                                       }
                                       bundle.dataset = std::move(dataset);
                                       bundle.config.model.model_name_or_path = folder;
                                       bundle.config.training.max_steps = 6;
                                       bundle.config.training.warmup_steps = 0;
                                     }});
    for (const Status& status : run_generation(*ranks, 1))
      REQUIRE_MESSAGE(status.ok(), status.to_string());
    const auto got = steps(dir.file("out"));
    REQUIRE(got.size() == 6);
    for (const StepRecord& step : got) {
      CAPTURE(step.skipped);
      CHECK(step.skipped.empty() == (step.step != 3));
    }
    CHECK(got[2].skipped.find("rank 1") != std::string::npos);
    CHECK(got[2].skipped.find("the loss and the gradient of ") == 0);
    CHECK(std::isnan(got[2].loss));
    // The schedule does not count it.
    CHECK(got[3].learning_rate == got[2].learning_rate);
    CHECK(got[5].loss < got[0].loss);
  }
}

TEST_CASE("ten skipped steps in a row end the run") {
  troupe::tests::TemporaryDirectory dir;
  auto ranks = make_ranks(dir.file("out"), {.world = 2, .change = [&](RunBundle& bundle) {
                                              under({"zero2"}, 40)(bundle);
                                              bundle.config.training.learning_rate = 1e38;
                                              bundle.config.training.weight_decay = 0;
                                            }});
  for (const Status& status : run_generation(*ranks, 1)) {
    CHECK(status.code() == Code::kFailedPrecondition);
    CHECK(status.message().find("10 steps in a row were skipped") == 0);
  }
}

TEST_CASE("a run whose steps were all skipped fails, and leaves no model") {
  const Golden golden;
  troupe::tests::TemporaryDirectory dir;
  const std::string folder = dir.file("model");
  write_damaged_model(golden, folder);
  auto ranks =
      make_ranks(dir.file("out"), {.world = 2, .change = [&](RunBundle& bundle) {
                                     under({"zero3"}, 3)(bundle);
                                     golden_bundle(golden, bundle);
                                     TokenDataset dataset(TokenDataset::Kind::kPretrain, 0);
                                     for (int i = 0; i < 20; ++i)
                                       dataset.append(std::vector<TokenId>(16, kDamagedToken));
                                     bundle.dataset = std::move(dataset);
                                     bundle.config.model.model_name_or_path = folder;
                                     bundle.config.training.max_steps = 3;
                                   }});
  for (const Status& status : run_generation(*ranks, 1)) {
    CHECK(status.code() == Code::kFailedPrecondition);
    CHECK(status.message().find("nothing was trained: every step was skipped, from step 1 to step "
                                "3, the last one because the loss and the gradient of ") == 0);
  }
  CHECK_FALSE(PosixFileSystem().exists(dir.file("out") + "/model.safetensors"));
}

TEST_CASE("asked to save and to stop, the run leaves a checkpoint of its step") {
  troupe::tests::TemporaryDirectory dir;
  auto ranks = make_ranks(dir.file("out"), {.world = 2, .change = under({"zero3"}, 12)});
  ranks->observers[0].save_and_stop = true;
  for (const Status& status : run_generation(*ranks, 1)) {
    CHECK(status.code() == Code::kCancelled);
    CHECK(status.message() == "stopped at step 1 after saving");
  }
  PosixFileSystem files;
  CHECK(validate_checkpoint(files, dir.file("out/checkpoint-1")).ok());
}

}  // namespace
}  // namespace troupe::train::tests
