// Runs whose data are tokenised while they are trained on, and runs on mapped samples, all ranks in
// one process.
#include <fstream>

#include "tests/train/trainer/run_fixture.h"
#include "train/data/token_cache.h"
#include "train/tokenizer/bpe_trainer.h"
#include "train/trainer/saved_stop.h"
#include "train/trainer/stream_setup.h"

namespace troupe::train::tests {
namespace {

// 70 rows, a tokenizer of bytes, and a run of 12 steps on them.
class StreamRun {
 public:
  explicit StreamRun(bool packing) : packing_(packing) {
    std::ofstream(dir.file("dataset_info.json"))
        << R"({"d": {"file_name": "d.txt", "columns": {"prompt": "text"}}})";
    std::ofstream rows(dir.file("d.txt"));
    for (int i = 0; i < 70; ++i) rows << "row " << i * i << "\n";
    TrainedBpe trained;
    trained.special_tokens = {"<e>", "<p>"};
    tokenizer_.emplace(Tokenizer::from_text(tokenizer_json_of(trained),
                                            R"({"eos_token": "<e>", "pad_token": "<p>"})", "", "t")
                           .value());
  }
  RunChange change(int world) {
    return {.world = world, .batch = 4 / world, .change = [this, world](RunBundle& bundle) {
              bundle.model.vocab_size = 272;
              bundle.companions["config.json"] = json::write(bundle.model.to_json());
              TrainConfig& config = bundle.config;
              config.data.dataset = {"d"};
              config.data.dataset_dir = dir.path();
              config.data.streaming = true;
              config.data.buffer_size = 10;
              config.data.cutoff_len = 16;
              config.data.packing = packing_;
              config.data.preprocessing_batch_size = 20;
              config.evaluation.val_size = 2;
              bundle.dataset = TokenDataset(TokenDataset::Kind::kPretrain, 1);
              bundle.source = stream_facts(config, world);
              PosixFileSystem files;
              bundle.sample_stream =
                  describe_streamed(files, stream_options(config, {}), {}).value().to_text();
              bundle.stream_tokenizer = tokenizer_->files().value();
            }};
  }
  troupe::tests::TemporaryDirectory dir;

 private:
  const bool packing_;
  std::optional<Tokenizer> tokenizer_;
};

TEST_CASE("a stream goes on from a checkpoint, and over a kill, with the same bits") {
  for (const bool packing : {false, true}) {
    CAPTURE(packing);
    StreamRun run(packing);
    const auto& dir = run.dir;
    train(dir.file("whole"), run.change(2));
    const std::string expected = file(dir.file("whole/model.safetensors"));
    REQUIRE(steps(dir.file("whole")).size() == 12);
    RunChange resumed = run.change(2);
    resumed.resume = dir.file("whole/checkpoint-5");
    train(dir.file("resumed"), resumed);
    CHECK((file(dir.file("resumed/model.safetensors")) == expected));

    const RunChange change = run.change(2);
    auto ranks = make_ranks(dir.file("killed"), change);
    ranks->observers[0].abort_after = 6;
    for (const Status& status : run_generation(*ranks, 1)) CHECK_FALSE(status.ok());
    ranks->observers[0].abort_after = -1;
    start_rank(*ranks, 1, dir.file("killed"), change);
    for (const Status& status : run_generation(*ranks, 2))
      CHECK_MESSAGE(status.ok(), status.to_string());
    CHECK((file(dir.file("killed/model.safetensors")) == expected));

    // The same samples in each step at another number of ranks: as many tokens.
    RunChange alone = run.change(1);
    alone.resume = dir.file("whole/checkpoint-5");
    train(dir.file("alone"), alone);
    const auto whole = steps(dir.file("whole")), other = steps(dir.file("alone"));
    REQUIRE(other.size() == 7);
    for (std::size_t i = 0; i < other.size(); ++i) {
      CHECK(other[i].step == whole[i + 5].step);
      CHECK(other[i].tokens == whole[i + 5].tokens);
      CHECK(other[i].loss == doctest::Approx(whole[i + 5].loss).epsilon(1e-4));
    }
  }
}

TEST_CASE("a run in another world goes on with the stream of the one before") {
  StreamRun run(false);
  const RunChange change = run.change(2);
  train(run.dir.file("whole"), change);
  for (const bool handed : {true, false}) {
    CAPTURE(handed);
    StreamRun again(false);
    const RunChange of_it = again.change(2);
    auto ranks = make_ranks(again.dir.file("out"), of_it);
    ranks->observers[0].pause_after = 6;
    for (const Status& status : run_generation(*ranks, 1)) CHECK(paused_step_of(status) == 6);
    ranks->observers[0] = TestObserver();
    for (const int rank : {0, 1}) {
      auto& run_before = ranks->runs[static_cast<std::size_t>(rank)];
      if (handed) ranks->carried = run_before->carry_over();
      run_before.reset();
      start_rank(*ranks, rank, again.dir.file("out"), of_it);
    }
    // Whoever reads the epoch from its begin would notice.
    std::ofstream(again.dir.file("d.txt"), std::ios::app) << "one more\n";
    for (const Status& status : run_generation(*ranks, 2))
      CHECK(status.code() == (handed ? Code::kOk : Code::kFailedPrecondition));
    if (handed)
      CHECK((file(again.dir.file("out/model.safetensors")) ==
             file(run.dir.file("whole/model.safetensors"))));
  }
}

TEST_CASE("a stream's file that changes ends the run by its name") {
  StreamRun run(false);
  auto ranks = make_ranks(run.dir.file("out"), run.change(2));
  std::ofstream(run.dir.file("d.txt"), std::ios::app) << "one more\n";
  for (const Status& status : run_generation(*ranks, 1)) {
    CHECK(status.code() == Code::kFailedPrecondition);
    CHECK(status.message().find("d.txt has changed since the run began") != std::string::npos);
  }
}

TEST_CASE("a run on mapped samples is the run on the same samples in memory") {
  troupe::tests::TemporaryDirectory dir;
  PosixFileSystem files;
  const TokenDataset samples = bundle_for("", 2, 1).dataset;
  const std::string folder = dir.file("cache");
  const auto write = [&](const TokenDataset& dataset) {
    auto writer = TokenCacheWriter::begin(files, folder + ".building").value();
    REQUIRE(writer.append("train", dataset).ok());
    REQUIRE(writer.finish({}, folder).ok());
  };
  write(samples);
  RunChange mapped;
  mapped.change = [&](RunBundle& bundle) {
    const auto cache = read_token_cache(files, folder).value();
    bundle.dataset = map_cached_set(files, folder, cache, "train").value();
    bundle.token_cache = folder;
    const auto bytes = encode_bundle(bundle);
    CHECK(bytes.size() < 20'000);
    bundle = decode_bundle(bytes).value();
    CHECK_FALSE(bundle.dataset.is_mapped());
    REQUIRE(map_samples(files, bundle).ok());
    CHECK(bundle.dataset.is_mapped());
  };
  train(dir.file("memory"), {});
  train(dir.file("mapped"), mapped);
  CHECK((file(dir.file("memory/model.safetensors")) == file(dir.file("mapped/model.safetensors"))));

  // Another run's samples in the folder are not taken for these.
  RunBundle bundle = bundle_for("", 2, 1);
  bundle.dataset =
      map_cached_set(files, folder, read_token_cache(files, folder).value(), "train").value();
  bundle.token_cache = folder;
  RunBundle arrived = decode_bundle(encode_bundle(bundle)).value();
  TokenDataset others(TokenDataset::Kind::kPretrain, 0);
  others.append(std::vector<TokenId>{1, 2, 200});
  write(others);
  CHECK(map_samples(files, arrived).code() == Code::kFailedPrecondition);
  // Nor are tokens that the model does not know.
  auto ranks = make_ranks(dir.file("beyond"), mapped);
  for (const Status& status : run_generation(*ranks, 1)) {
    CHECK(status.code() == Code::kDataLoss);
    CHECK(status.message().find("overwrite_cache: true") != std::string::npos);
  }
  REQUIRE(files.remove_tree(folder).ok());
  CHECK(map_samples(files, arrived).code() == Code::kNotFound);
}

}  // namespace
}  // namespace troupe::train::tests
