// Samples on disk: made once, taken after that, made anew where anything differs or is damaged.

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <thread>

#include "runtime/base/file_lock.h"
#include "tests/train/data/support.h"
#include "train/data/cached_dataset.h"
#include "train/data/token_cache.h"

namespace troupe::train {
namespace {

const char* const kCacheConfig = R"({"eos_token": "<e>", "pad_token": "<p>"})";

// Rows enough for several blocks where a block has 4 MiB or 4096 rows.
std::string cached_rows(int count, const std::string& word = "row") {
  std::string rows;
  for (int i = 0; i < count; ++i)
    rows += fmt::format("{{\"instruction\": \"{} {}\", \"output\": \"answer {}\"}}\n", word, i, i);
  return rows;
}

struct Cached : DataFolder {
  explicit Cached(int rows = 30) {
    write("dataset_info.json", R"({"a": {"file_name": "a.jsonl"}, "b": {"file_name": "b.jsonl"}})");
    write("a.jsonl", cached_rows(rows));
    write("b.jsonl", cached_rows(5, "evaluated"));
    options = DataFolder::options(DataOptions::Stage::kSupervised, {"a"});
    request.folder = directory.file("cache");
    request.tokenizer = "t";
    request.holder = "this test";
    request.say = [this](const std::string& line) { said += line + "\n"; };
  }
  Result<CachedDataset> get() {
    said.clear();
    return cached_dataset(files, options, byte_tokenizer({"<e>", "<p>"}, kCacheConfig), request);
  }
  // How many files and folders are beside the cache that nobody needs.
  std::int64_t leftovers() {
    const auto entries = files.list(directory.path()).value();
    return std::ranges::count_if(entries, [](const DirectoryEntry& entry) {
      return entry.name.starts_with("cache") && entry.name != "cache";
    });
  }
  void damage(const std::string& name, std::size_t at) {
    const std::string path = directory.file("cache/" + name);
    std::string bytes = files.read(path, 1 << 20).value();
    bytes.at(at) = static_cast<char>(bytes.at(at) ^ 1);
    std::ofstream(path, std::ios::binary) << bytes;
  }
  DataOptions options;
  CacheRequest request;
  std::string said;
};

bool equal_sets(const TokenDataset& a, const TokenDataset& b) {
  const auto x = a.columns(), y = b.columns();
  return a.kind() == b.kind() && a.pad_id() == b.pad_id() && std::ranges::equal(x.ids, y.ids) &&
         std::ranges::equal(x.labels, y.labels) && std::ranges::equal(x.ends, y.ends) &&
         std::ranges::equal(x.parts, y.parts) && std::ranges::equal(x.part_ends, y.part_ends);
}

TEST_CASE("a second start takes what the first one made, and it is what is made in memory") {
  for (const bool packing : {false, true}) {
    for (const double val_size : {0.0, 4.0}) {
      Cached folder;
      folder.options.packing = packing;
      folder.options.neat_packing = packing && val_size > 0;
      folder.options.cutoff_len = 64;
      folder.options.preprocessing_batch_size = 7;
      folder.options.val_size = val_size;
      if (val_size == 0) folder.options.eval_dataset = {"b"};
      const auto first = folder.get();
      REQUIRE_MESSAGE(first.ok(), first.status().to_string());
      CHECK(first->made);
      CHECK(first->records == 30);
      const auto second = folder.get().value();
      CHECK_FALSE(second.made);
      CHECK(second.records == 30);
      CHECK(second.module.notes == first->module.notes);
      const auto memory =
          build_dataset(folder.files, folder.options, byte_tokenizer({"<e>", "<p>"}, kCacheConfig))
              .value();
      for (const auto* module : {&first->module, &second.module}) {
        CHECK(module->train.is_mapped());
        CHECK(equal_sets(module->train, memory.train));
        CHECK(equal_sets(module->eval.value(), memory.eval.value()));
        CHECK_FALSE(module->held_out);
      }
      CHECK(second.module.notes == memory.notes);
      CHECK(folder.leftovers() == 0);
    }
  }
}

TEST_CASE("data sets that are evaluated one by one are parts of what is evaluated") {
  Cached folder;
  folder.options.eval_dataset = {"b", "a", "b"};
  folder.options.mix_strategy = "interleave_under";
  const auto mixed = folder.get();
  REQUIRE_MESSAGE(mixed.ok(), mixed.status().to_string());
  CHECK(mixed->module.eval->size() == 10);
  CHECK(mixed->module.eval_parts.empty());
  folder.options.eval_each = true;
  for (const bool made : {true, false}) {
    const auto apart = folder.get();
    REQUIRE_MESSAGE(apart.ok(), apart.status().to_string());
    CHECK(apart->made == made);
    CHECK(apart->module.eval->size() == 35);
    CHECK(apart->module.eval_parts == std::vector<EvalPart>{{"b", 5}, {"a", 30}});
  }
}

TEST_CASE("settings that are objects have no order") {
  Cached folder;
  folder.options.dataset.clear();
  folder.options.rows.datasets = {
      {{"path", folder.directory.file("a.jsonl")}, {"type", "alpaca"}, {"ds_type", "json"}}};
  folder.options.rows.special_tokens = {{"pad_token", "<p>"}, {"eos_token", "<e>"}};
  const auto first = folder.get();
  REQUIRE_MESSAGE(first.ok(), first.status().to_string());
  CHECK_FALSE(folder.get().value().made);
}

TEST_CASE("many rows become the samples that they become at once, whatever is read together") {
  Cached folder(18'000);
  folder.options.stage = DataOptions::Stage::kPretrain;
  folder.options.cutoff_len = 50;
  std::vector<std::int64_t> told;
  folder.request.progress = [&](const SamplesMade& made) {
    CHECK(made.file_bytes > made.text_bytes);
    told.push_back(made.rows);
  };
  const auto made = folder.get().value();
  CHECK(told ==
        std::vector<std::int64_t>{5000, 10000, 15000, 18000});  // whole preprocessing batches
  // As one call makes them of all rows.
  std::vector<Conversation> rows;
  for (int i = 0; i < 18'000; ++i)
    rows.push_back({.messages = {{Role::kUser, fmt::format("row {}", i)}}});
  PretrainOptions pretrain{.cutoff_len = 50, .eos_token = "<e>"};
  EncodeReport report;
  TokenDataset whole(TokenDataset::Kind::kPretrain, made.module.train.pad_id());
  REQUIRE(
      encode_pretrain(rows, byte_tokenizer({"<e>", "<p>"}, kCacheConfig), pretrain, whole, report)
          .ok());
  CHECK(equal_sets(made.module.train, whole));
}

TEST_CASE("a changed setting, tokenizer or file is never answered by an old cache") {
  Cached folder;
  REQUIRE(folder.get().ok());
  const auto made_anew = [&](const char* because) {
    const auto got = folder.get();
    REQUIRE_MESSAGE(got.ok(), got.status().to_string());
    CHECK(got->made);
    CHECK_MESSAGE(folder.said.find(because) != std::string::npos, folder.said);
    CHECK_FALSE(folder.get()->made);
    return got->module.train.token_count();
  };
  folder.options.cutoff_len = 9;
  CHECK(made_anew("cutoff_len was 2048 and is 9") <= 30 * 9);
  folder.options.train_on_prompt = true;
  made_anew("train_on_prompt was false and is true");
  folder.options.template_name = "vicuna";
  made_anew("template was");
  folder.request.tokenizer = "another";
  made_anew("the tokenizer is another one");
  folder.write("dataset_info.json",
               R"({"a": {"file_name": "a.jsonl", "columns": {"prompt": "instruction",
                   "response": "output"}}})");
  made_anew("columns and tags in dataset_info.json");
  folder.write("a.jsonl", cached_rows(31));
  made_anew("a.jsonl is not what it was");
  folder.options.max_samples = 2;
  made_anew("max_samples was null and is 2");
  folder.request.overwrite = true;
  CHECK(folder.get()->made);
  folder.request.overwrite = false;
  // The same bytes with another time are the same file.
  folder.write("a.jsonl", cached_rows(31));
  CHECK_FALSE(folder.get()->made);
}

TEST_CASE("a damaged cache is named and made anew") {
  Cached folder;
  REQUIRE(folder.get().ok());
  const auto good =
      build_dataset(folder.files, folder.options, byte_tokenizer({"<e>", "<p>"}, kCacheConfig))
          .value();
  const auto anew = [&](const std::string& because) {
    const auto got = folder.get();
    REQUIRE_MESSAGE(got.ok(), got.status().to_string());
    CHECK(got->made);
    CHECK_MESSAGE(folder.said.find(because) != std::string::npos, folder.said);
    CHECK(equal_sets(got->module.train, good.train));
  };
  folder.damage("train.ids", 5);
  anew("train.ids is not what was written");
  REQUIRE(::truncate(folder.directory.file("cache/train.labels").c_str(), 8) == 0);
  anew("train.labels has 8 bytes");
  REQUIRE(folder.files.remove(folder.directory.file("cache/train.ends")).ok());
  anew("train.ends is not there");
  folder.damage("cache.json", 0);
  anew("cache.json");
  // Hashes of a stranger's making do not help: arrays must fit together.
  const auto path = folder.directory.file("cache/cache.json");
  std::string text = folder.files.read(path, 1 << 20).value();
  const auto at = text.find("\"format\"");
  text.replace(at, 8, "\"Format\"");
  std::ofstream(path) << text;
  anew("another version of Troupe wrote it");
}

TEST_CASE("what a killed process left is thrown away") {
  Cached folder(18'000);
  const pid_t child = ::fork();
  if (child == 0) {
    folder.request.progress = [](const SamplesMade&) { ::kill(::getpid(), SIGKILL); };
    static_cast<void>(folder.get());
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  CHECK_FALSE(holds_token_cache(folder.files, folder.request.folder));
  CHECK(folder.leftovers() == 2);  // half a cache, and a lock that nobody holds
  const auto made = folder.get();
  REQUIRE_MESSAGE(made.ok(), made.status().to_string());
  CHECK(made->made);
  CHECK(made->module.train.size() == 18'000);
  CHECK(folder.leftovers() == 0);
}

TEST_CASE("of several that want it at once one makes it") {
  Cached folder(3000);
  folder.request.say = {};
  std::atomic<int> made{0}, good{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      CacheRequest request = folder.request;
      request.say = [](const std::string&) {};
      const auto got = cached_dataset(folder.files, folder.options,
                                      byte_tokenizer({"<e>", "<p>"}, kCacheConfig), request);
      good += got.ok() && got->module.train.size() == 3000 ? 1 : 0;
      made += got.ok() && got->made ? 1 : 0;
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(good == 3);
  CHECK(made == 1);
  CHECK(folder.leftovers() == 0);
}

TEST_CASE("a holder that does not end is named when the wait does") {
  Cached folder;
  const auto held = FileLock::take(folder.request.folder + ".lock", "process 7").value();
  folder.request.wait_max = std::chrono::seconds(0);
  const auto got = folder.get();
  CHECK(got.status().code() == Code::kDeadlineExceeded);
  CHECK(got.status().message().find("process 7") != std::string::npos);
}

TEST_CASE("what is half made is guarded until it has its name") {
  Cached folder;
  std::string guarded;
  std::weak_ptr<void> guard;
  folder.request.remove_at_signal = [&](const std::string& building) {
    CHECK_FALSE(folder.files.exists(building));
    guarded = building;
    const auto held = std::make_shared<int>();
    guard = held;
    return held;
  };
  folder.request.progress = [&](const SamplesMade&) {
    CHECK(folder.files.exists(guarded));
    CHECK_FALSE(guard.expired());
  };
  REQUIRE(folder.get().ok());
  CHECK_FALSE(guarded.empty());
  CHECK(guard.expired());
}

TEST_CASE("a file that changes while it is read is named, and nothing is kept") {
  Cached folder;
  folder.request.progress = [&](const SamplesMade&) { folder.write("a.jsonl", cached_rows(29)); };
  const auto got = folder.get();
  CHECK(got.status().code() == Code::kFailedPrecondition);
  CHECK(got.status().message().find("a.jsonl changed while it was read") != std::string::npos);
  CHECK_FALSE(holds_token_cache(folder.files, folder.request.folder));
  CHECK(folder.leftovers() == 0);
}

TEST_CASE("a named cache is taken without its data, and other settings are refused") {
  Cached folder;
  folder.request.named = true;
  const auto made = folder.get().value();
  REQUIRE(folder.files.remove(folder.directory.file("a.jsonl")).ok());
  // The data are named, and not there.
  auto taken = folder.get();
  REQUIRE_MESSAGE(taken.ok(), taken.status().to_string());
  CHECK(taken->as_it_is);
  CHECK(folder.said.find("taken as it is: ") != std::string::npos);
  CHECK(equal_sets(taken->module.train, made.module.train));
  folder.options.cutoff_len = 100;
  CHECK(folder.get().status().message().find("cutoff_len was 2048 and is 100") !=
        std::string::npos);
  // No data are named: what they were made by is not asked.
  folder.options.dataset.clear();
  taken = folder.get();
  REQUIRE_MESSAGE(taken.ok(), taken.status().to_string());
  CHECK(equal_sets(taken->module.train, made.module.train));
  folder.request.tokenizer = "another";
  CHECK(folder.get().status().code() == Code::kFailedPrecondition);
  folder.request.folder = folder.directory.file("nothing");
  CHECK(folder.get().status().code() == Code::kNotFound);
}

TEST_CASE("a folder that is somebody else's stays as it is") {
  Cached folder;
  folder.request.named = true;
  REQUIRE(folder.files.create_directories(folder.request.folder).ok());
  CHECK(folder.get().ok());  // an empty one is taken
  REQUIRE(folder.files.remove_tree(folder.request.folder).ok());
  REQUIRE(folder.files.create_directories(folder.request.folder).ok());
  folder.write("cache/notes.txt", "mine");
  CHECK(folder.get().status().code() == Code::kInvalidArgument);
  folder.write("cache/dataset_dict.json", "{}");
  const auto got = folder.get();
  CHECK(got.status().code() == Code::kUnsupported);
  CHECK(got.status().message().find("LLaMA-Factory") != std::string::npos);
  folder.request.overwrite = true;
  CHECK(folder.get().status().code() == Code::kUnsupported);
  CHECK(folder.files.exists(folder.directory.file("cache/notes.txt")));
}

TEST_CASE("ids that are no tokens are found before they are trained on") {
  TokenDataset dataset(TokenDataset::Kind::kSupervised, 0);
  dataset.append(std::vector<TokenId>{1, 2}, std::vector<std::int32_t>{kIgnoredLabel, 2});
  dataset.append(std::vector<TokenId>{1, 2}, std::vector<std::int32_t>{kIgnoredLabel, 9});
  dataset.append(std::vector<TokenId>{1, -2}, std::vector<std::int32_t>{kIgnoredLabel, 2});
  const std::uint32_t samples[] = {0, 1, 2};
  CHECK(check_tokens(dataset, std::span(samples).first(1), 3).ok());
  CHECK(check_tokens(dataset, std::span(samples).subspan(1, 1), 9).code() == Code::kDataLoss);
  CHECK(check_tokens(dataset, std::span(samples).subspan(2, 1), 9).code() == Code::kDataLoss);
}

}  // namespace
}  // namespace troupe::train
