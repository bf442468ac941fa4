#include "train/adapters/base_record.h"

#include <doctest/doctest.h>

#include "tests/support/test_data.h"
#include "tests/support/text.h"
#include "train/checkpoint/safetensors.h"

namespace troupe::train {
namespace {

using troupe::tests::contains;

// Folders with weights of two tensors; `changed` is added to one value of the second.
struct Bases {
  std::string add(const std::string& name, std::size_t at, float changed, bool two_files = false) {
    const std::string folder = directory.file(name);
    REQUIRE(files.create_directories(folder).ok());
    std::vector<float> first(8, 1.0f), second(5000, 2.0f);
    second[at] += changed;
    const StoredTensor a{"a", DType::kF32, {2, 4}, std::as_bytes(std::span(first))};
    const StoredTensor b{"b", DType::kF32, {50, 100}, std::as_bytes(std::span(second))};
    if (!two_files) {
      REQUIRE(write_safetensors(files, folder + "/model.safetensors", {a, b}, {}).ok());
      return folder;
    }
    REQUIRE(write_safetensors(files, folder + "/one.safetensors", {a}, {}).ok());
    REQUIRE(write_safetensors(files, folder + "/two.safetensors", {b}, {}).ok());
    REQUIRE(write_file_atomically(files, folder + "/model.safetensors.index.json",
                                  R"({"metadata": {"total_size": 20032},
                                      "weight_map": {"a": "one.safetensors",
                                                     "b": "two.safetensors"}})")
                .ok());
    return folder;
  }
  std::string hash(const std::string& folder) {
    const auto record = BaseRecord::make(files, folder, {});
    REQUIRE_MESSAGE(record.ok(), record.status().to_string());
    return record->hash;
  }

  troupe::tests::TemporaryDirectory directory;
  PosixFileSystem files;
};

TEST_CASE("a base's hash is that of its tensors, whatever files hold them") {
  Bases bases;
  const std::string hash = bases.hash(bases.add("base", 0, 0));
  CHECK(bases.hash(bases.add("shards", 0, 0, true)) == hash);
  // The first, the middle and the last values.
  for (const std::size_t at : {std::size_t{3}, std::size_t{2500}, std::size_t{4999}})
    CHECK(bases.hash(bases.add("other", at, 1.0f)) != hash);
}

TEST_CASE("an adapter of another base is refused by its record") {
  Bases bases;
  const std::string base = bases.add("base", 0, 0), other = bases.add("other", 0, 1.0f);
  const std::string adapter = bases.directory.file("adapter");
  REQUIRE(bases.files.create_directories(adapter).ok());
  const auto check = [&](const std::string& folder) {
    return check_adapter_base(bases.files, adapter, folder,
                              {.hash = bases.hash(folder), .merged = {}});
  };
  CHECK(check(other).ok());  // PEFT's adapters have no record
  const auto write = [&](const BaseRecord& record) {
    const std::string text = record.to_text();
    CHECK(BaseRecord::parse(text, "record").value().to_text() == text);
    REQUIRE(write_file_atomically(bases.files, adapter + "/" + kBaseRecordFile, text).ok());
  };
  write(BaseRecord::make(bases.files, base, {}).value());
  CHECK(check(base).ok());
  CHECK(check(other).code() == Code::kInvalidArgument);
  CHECK(
      contains(check(other).message(), adapter + " was trained beside another base than " + other));

  const auto merge_with_alpha = [&](double alpha) {
    AdapterConfig config;
    config.lora_alpha = alpha;
    config.target_modules.names = {"q_proj"};
    REQUIRE(write_file_atomically(bases.files, other + "/" + kAdapterConfigFile, config.to_text())
                .ok());
    return BaseRecord::make(bases.files, base, {other}).value();
  };
  const BaseRecord merged = merge_with_alpha(16);
  write(merged);
  // The same tensors, merged with another scale.
  const BaseRecord rescaled = merge_with_alpha(32);
  for (const Status& refused : {check_checkpoint_base(bases.files, adapter, base, rescaled),
                                check_adapter_base(bases.files, adapter, base, rescaled)}) {
    CHECK(refused.code() == Code::kInvalidArgument);
    CHECK(contains(refused.message(), "of merged adapter 1, lora_alpha was 16 and is 32"));
  }
  // A record of an earlier version does not tell.
  write({.hash = merged.hash, .merged = merged.merged});
  CHECK(check_checkpoint_base(bases.files, adapter, base, rescaled).ok());
  write(merged);
  CHECK(check(other).ok());  // it may be an export of that base
  CHECK(check_adapter_base(bases.files, adapter, base, merged).ok());
  CHECK(contains(check(base).message(), adapter + " was trained over " + base +
                                            " with another adapter merged into it, which is not"));
  CHECK(check_adapter_base(bases.files, adapter, base, {.hash = merged.hash, .merged = {"1"}})
            .code() == Code::kInvalidArgument);
  CHECK(check_checkpoint_base(bases.files, adapter, base, merged).ok());
  CHECK(contains(
      check_checkpoint_base(bases.files, adapter, base, {.hash = merged.hash, .merged = {}})
          .message(),
      "1 of them, this run merges 0"));
  CHECK(contains(
      check_checkpoint_base(bases.files, adapter, other, {.hash = "1", .merged = {}}).message(),
      "another base than"));
}

}  // namespace
}  // namespace troupe::train
