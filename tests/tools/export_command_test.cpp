// export and generate with adapters, as a user runs them.

#include "runtime/base/file_system.h"
#include "tests/support/text.h"
#include "tests/tools/troupe_program.h"

namespace troupe::tests {
namespace {

TEST_CASE("generate says what it cannot read, and what to do") {
  const TroupeHome home;
  const auto refused = home.run({"generate", "--model", home.file("none"), "--prompt", "x"});
  CHECK(refused.exit_code == 3);
  CHECK(contains(refused.err, home.file("none") + "' is no folder on this machine"));
  const auto empty = home.run({"generate", "--model", home.path(), "--prompt", "x"});
  CHECK(empty.exit_code == 3);
  CHECK(contains(empty.err, "'" + home.path() + "' has no config.json"));
}

TEST_CASE("export merges what generate merges in memory") {
  const auto base = test_data("stories260K/hf");
  const auto golden = test_data("lf_golden");
  if (!base || !golden) return;
  const TroupeHome home;
  PosixFileSystem files;
  const std::string first = *golden + "/inits/r4_qv_save", second = *golden + "/inits/r8";
  REQUIRE(write_file_atomically(files, home.file("merge.yaml"),
                                "model_name_or_path: " + *base +
                                    "\nadapter_name_or_path: " + first + "," + second +
                                    "\ntemplate: default\nexport_dir: " + home.file("merged") +
                                    "\ninfer_dtype: float32\n")
              .ok());
  const auto exported = home.run({"export", home.file("merge.yaml"), "export_size=1"});
  REQUIRE_MESSAGE(exported.exit_code == 0, exported.err);
  CHECK(contains(exported.out, " with 2 adapters: 48 tensors in float32, "));
  CHECK(contains(exported.out, "tie_word_embeddings is false now"));
  CHECK(
      contains(exported.out, "largest |Δlogit| on a probe text, merged against base + adapter: "));

  const auto continued = [&](const std::vector<std::string>& model) {
    std::vector<std::string> words = {
        "generate", "--prompt", "Once upon a time", "--max-tokens", "40", "--threads", "1"};
    words.insert(words.end(), model.begin(), model.end());
    const auto result = home.run(words);
    CHECK_MESSAGE(result.exit_code == 0, result.err);
    return result.out;
  };
  const std::string text = continued({"--model", *base, "--adapter", first, "--adapter", second});
  CHECK(text == continued({"--model", home.file("merged")}));
  CHECK(text != continued({"--model", *base}));

  const auto again = home.run({"export", home.file("merge.yaml")});
  CHECK(again.exit_code == 2);
  CHECK(contains(again.err, "name another directory"));
  CHECK(home.run({"export", home.file("merge.yaml"), "export_dir="}).exit_code == 2);
  const auto none =
      home.run({"generate", "--model", *base, "--adapter", home.path(), "--prompt", "x"});
  CHECK(none.exit_code == 3);
  CHECK(contains(none.err, "Can't find 'adapter_config.json' at '" + home.path() + "'"));
}

}  // namespace
}  // namespace troupe::tests
