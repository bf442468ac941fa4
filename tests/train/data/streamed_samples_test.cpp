// Data that are tokenised while they are trained on: the order, steps, and going on from a cursor.

#include "train/data/streamed_samples.h"

#include "tests/train/data/lf_golden.h"
#include "tests/train/data/support.h"

namespace troupe::train {
namespace {

const char* const kStreamConfig = R"({"eos_token": "<e>", "pad_token": "<p>"})";

struct Streamed : DataFolder {
  explicit Streamed(int rows) {
    write("dataset_info.json", R"({"a": {"file_name": "a.txt", "columns": {"prompt": "text"}},
                                   "b": {"file_name": "b.txt", "columns": {"prompt": "text"}}})");
    std::string text, more;
    for (int i = 0; i < rows; ++i) text += fmt::format("{}\n", i);
    for (int i = 0; i < 5; ++i) more += fmt::format("{}\n", 1000 + i);
    write("a.txt", text).write("b.txt", more);
    stream.data = options(DataOptions::Stage::kPretrain, {"a"});
    stream.data.packing = false;
    stream.order.buffer_size = 16;
    stream.steps.per_device_batch_size = 4;
  }
  std::unique_ptr<StreamedSamples> open() {
    auto opened =
        StreamedSamples::make(files, byte_tokenizer({"<e>", "<p>"}, kStreamConfig), stream);
    REQUIRE_MESSAGE(opened.ok(), opened.status().to_string());
    return std::move(*opened);
  }
  StreamedSamplesOptions stream;
};

// A row is a number and the end token.
std::string digits_of(const TokenDataset& dataset, std::int64_t sample) {
  std::string out;
  for (const TokenId id : dataset.ids(sample)) {
    if (id >= 2) out += static_cast<char>(id - 2);
    if (id == 0) out += ' ';
  }
  return out;
}

std::vector<TokenId> numbers_of(const TokenDataset& dataset,
                                std::span<const std::uint32_t> samples) {
  std::vector<TokenId> out;
  for (const auto sample : samples) out.push_back(std::stoi(digits_of(dataset, sample)));
  return out;
}

// All of a step, as text.
std::string step_text(const StreamedSamples& stream, const StepPlan& plan) {
  std::string out;
  for (const auto& batch : plan.batches) {
    for (const auto sample : batch) out += digits_of(stream.dataset(), sample);
    out += "| ";
  }
  return out;
}

TEST_CASE("a stream is shuffled and mixed as LLaMA-Factory's is") {
  const auto root = golden_json("mixing.json");
  if (root.is_null()) return;
  int compared = 0;
  for (const auto& run : root.at("streaming").as_array()) {
    if (run.at("num_shards").as_int64() != 1 || !run.at("result").is_object()) continue;
    const auto rows = run.at("n").as_int64(), kept = run.at("val_size").as_int64();
    CAPTURE(rows);
    CAPTURE(kept);
    for (const std::int64_t epoch : {0, 1}) {
      CAPTURE(epoch);
      ShuffleBuffer<TokenId> buffer(static_cast<std::uint64_t>(run.at("seed").as_int64()), epoch,
                                    run.at("buffer_size").as_int64());
      TokenId next = 0;
      const auto source = [&]() -> Result<std::optional<TokenId>> {
        return next < rows ? std::optional(next++) : std::nullopt;
      };
      std::vector<TokenId> order;
      while (const auto one = buffer.next(source).value()) order.push_back(*one);
      REQUIRE(std::ssize(order) == rows);
      const auto told = ints_of(run.at("result").at(epoch == 0 ? "epoch0" : "epoch1"));
      REQUIRE(std::ssize(order) >= kept + std::ssize(told));
      CHECK(std::equal(told.begin(), told.end(), order.begin() + kept));
      if (kept > 0 && epoch == 0) {
        const auto validation = ints_of(run.at("result").at("validation"));
        CHECK(std::equal(validation.begin(), validation.end(), order.begin()));
      }
    }
    ++compared;
  }
  CHECK(compared >= 8);
  compared = 0;
  const auto sizes = ints_of(root.at("sizes"));
  for (const auto& run : root.at("mix").as_array()) {
    if (!run.at("streaming").as_bool() || !run.at("result").is_object()) continue;
    const auto strategy = text_of(run, "mix_strategy"), probs = text_of(run, "interleave_probs");
    CAPTURE(strategy);
    CAPTURE(probs);
    MixedRows::Sources sources;
    for (std::size_t set = 0; set < sizes.size(); ++set) {
      sources.emplace_back([set, size = sizes[set]](const RowTaker& take) -> Status {
        for (TokenId row = 0; row < size; ++row)
          TROUPE_RETURN_IF_ERROR(take({.system = fmt::format("{}:{}", set, row)}));
        return {};
      });
    }
    std::vector<double> shares;
    if (!probs.empty()) shares = {0.7, 0.2, 0.1};
    MixedRows mixed(std::move(sources), strategy, shares,
                    static_cast<std::uint32_t>(run.at("seed").as_int64()));
    std::vector<std::string> rows;
    while (const auto row = mixed.next().value()) rows.push_back(row->system);
    CHECK(std::ssize(rows) == run.at("result").at("total").as_int64());
    const auto& first = run.at("result").at("first").as_array();
    for (std::size_t i = 0; i < first.size() && i < rows.size(); ++i)
      REQUIRE(rows[i] == first[i].as_string());
    ++compared;
  }
  CHECK(compared == 9);
}

TEST_CASE("ranks see the rows of a stream that LLaMA-Factory's ranks see") {
  int compared = 0;
  for (const auto& run : golden_lines("order")) {
    if (!run.as_object().contains("streaming")) continue;
    Streamed folder(static_cast<int>(run.at("n").as_int64()));
    folder.stream.steps.world_size = run.at("world_size").as_int64();
    folder.stream.data.seed = static_cast<std::uint32_t>(run.at("seed").as_int64());
    CAPTURE(folder.stream.steps.world_size);
    const auto stream = folder.open();
    SampleCursor cursor;
    std::int64_t step = 0;
    const auto& epochs = run.at("epochs").as_array();
    std::int64_t epoch = 0;
    for (; epoch < std::ssize(epochs); ++epoch) {
      CAPTURE(epoch);
      const auto& ranks = epochs[static_cast<std::size_t>(epoch)].as_array();
      for (std::size_t batch = 0; batch < ranks[0].as_array().size(); ++batch, ++step) {
        const auto plan = stream->next_step(cursor);
        REQUIRE_MESSAGE(plan.ok(), plan.status().to_string());
        CHECK(plan->epoch == epoch);
        for (std::size_t rank = 0; rank < ranks.size(); ++rank)
          CHECK(numbers_of(stream->dataset(), plan->samples(0, static_cast<std::int64_t>(rank))) ==
                ints_of(ranks[rank].as_array()[batch]));
        cursor = plan->after;
      }
    }
    CHECK(step == run.at("max_steps").as_int64());
    ++compared;
  }
  CHECK((compared == 0 || compared == 6));
}

TEST_CASE("from any cursor, at any number of ranks, a stream goes on as it would have") {
  for (const bool packing : {false, true}) {
    CAPTURE(packing);
    Streamed folder(50);
    folder.stream.data.dataset = {"a", "b"};
    folder.stream.data.mix_strategy = "interleave_over";
    folder.stream.data.packing = packing;
    folder.stream.data.cutoff_len = 5;
    folder.stream.data.preprocessing_batch_size = 9;
    folder.stream.rows_kept = 3;
    folder.stream.steps.gradient_accumulation_steps = 2;
    const auto whole = folder.open();
    std::vector<SampleCursor> cursors(1);
    std::vector<std::string> steps;
    while (cursors.back().epoch < 2) {
      const auto plan = whole->next_step(cursors.back());
      REQUIRE_MESSAGE(plan.ok(), plan.status().to_string());
      steps.push_back(step_text(*whole, *plan));
      cursors.push_back(plan->after);
    }
    REQUIRE(steps.size() > 8);
    CHECK(cursors.back().epoch == 2);
    // A step that is done again, and one in another process.
    for (const std::size_t at : {steps.size() - 1, std::size_t{1}, std::size_t{4}}) {
      const auto again = whole->next_step(cursors[at]);
      CHECK(step_text(*whole, again.value()) == steps[at]);
      const auto resumed = folder.open();
      const auto plan = resumed->next_step(cursors[at]);
      CHECK(step_text(*resumed, plan.value()) == steps[at]);
      CHECK(plan->after.next_sample == cursors[at + 1].next_sample);
      CHECK(plan->first_sample == cursors[at].next_sample);
    }
    // The samples of an epoch are the same ones for four ranks as for one.
    folder.stream.steps = {.world_size = 4, .per_device_batch_size = 1};
    const auto other = folder.open();
    const auto plan = other->next_step(cursors[2]).value();
    std::string joined = step_text(*other, plan), expected = steps[2];
    std::erase(joined, '|'), std::erase(expected, '|');
    joined.erase(std::unique(joined.begin(), joined.end(),
                             [](char a, char b) { return a == ' ' && b == ' '; }),
                 joined.end());
    CHECK(expected.starts_with(joined.substr(0, 3)));
  }
}

TEST_CASE("a stream of pairs, of which some are dropped, goes on behind them where it was") {
  Streamed folder(0);
  folder.write("dataset_info.json", R"({"a": {"file_name": "a.jsonl", "ranking": true, "columns":
      {"prompt": "instruction", "query": "input", "chosen": "chosen", "rejected": "rejected"}}})");
  std::string rows;
  for (int i = 0; i < 30; ++i)
    // Every third prompt leaves no room for an answer.
    rows += fmt::format(
        R"({{"instruction": "{}{}", "input": "", "chosen": "answer{}", "rejected": "b"}})"
        "\n",
        i, std::string(i % 3 == 1 ? 4000 : 0, 'x'), i);
  folder.write("a.jsonl", rows);
  folder.stream.data = folder.options(DataOptions::Stage::kPairs, {"a"});
  folder.stream.data.template_name = "empty";
  folder.stream.data.cutoff_len = 8;
  const auto whole = folder.open();
  std::vector<SampleCursor> cursors(1);
  std::vector<std::string> steps;
  while (cursors.back().epoch < 1) {
    const auto plan = whole->next_step(cursors.back());
    REQUIRE_MESSAGE(plan.ok(), plan.status().to_string());
    steps.push_back(step_text(*whole, *plan));
    cursors.push_back(plan->after);
  }
  CHECK(steps.size() == 5);  // of 20 pairs
  const auto resumed = folder.open();
  const auto plan = resumed->next_step(cursors[3]);
  REQUIRE_MESSAGE(plan.ok(), plan.status().to_string());
  CHECK(step_text(*resumed, *plan) == steps[3]);
}

TEST_CASE("a stream without a sample, and one that changes, end in their names") {
  Streamed folder(3);
  folder.stream.steps.world_size = 2;
  folder.stream.steps.drop_last = true;
  auto stream = folder.open();
  CHECK(stream->next_step({}).status().message().find("dataloader_drop_last") != std::string::npos);
  folder.stream.steps.drop_last = false;
  folder.stream.files = describe_streamed(folder.files, folder.stream, {}).value().files;
  stream = folder.open();
  const auto first = stream->next_step({});
  REQUIRE(first.ok());
  CHECK(first->last_of_epoch);
  CHECK(first->batches.size() == 2);
  folder.write("a.txt", "other\n");
  const auto next = stream->next_step(first->after);
  CHECK(next.status().code() == Code::kFailedPrecondition);
  CHECK(next.status().message().find("a.txt has changed since the run began") != std::string::npos);
  folder.write("dataset_info.json", R"({"a": {"file_name": "a.txt", "num_samples": 2,
                                             "columns": {"prompt": "text"}}})");
  folder.stream.files.clear();
  CHECK(folder.open()->next_step({}).status().message().find("num_samples needs all rows") !=
        std::string::npos);
}

TEST_CASE("a stream that nobody reads to its end does not go on") {
  Streamed folder(20'000);
  const auto stream = folder.open();
  CHECK(stream->next_step({}).ok());  // the reading ends with it
}

}  // namespace
}  // namespace troupe::train
