#include "train/parts/training_parts.h"

#include <doctest/doctest.h>

namespace troupe::train {
namespace {

class Numbers : public DataSource {
 public:
  explicit Numbers(const json::Object& arguments)
      : size_(json::find_integer(arguments, "size").value_or(1)) {}
  std::int64_t size() const override { return size_; }
  std::int64_t length_max() const override { return 1; }
  Result<TrainingSample> sample(std::int64_t, std::int64_t number) const override {
    return TrainingSample{{static_cast<TokenId>(number)}, {}};
  }

 private:
  std::int64_t size_;
};
class Silent : public TrainingCallback {};

TrainingParts listed() {
  return {.data_sources = {{"numbers", part<DataSource, Numbers>()},
                           {"refuses",
                            [](const json::Object&) -> Result<std::shared_ptr<const DataSource>> {
                              return error(Code::kInvalidArgument, "no file");
                            }}},
          .callbacks = {{"silent", part<TrainingCallback, Silent>()}}};
}

TEST_CASE("a part is made by its name from the run's arguments") {
  const auto made = make_part(listed().data_sources, {"numbers", {{"size", 7}}});
  REQUIRE(made.ok());
  CHECK((*made)->size() == 7);
  CHECK(make_part(listed().callbacks, {"silent"}).ok());
}

TEST_CASE("a name that is not listed is refused with those that are, a factory's refusal named") {
  const auto unknown = make_part(listed().data_sources, {"number"});
  CHECK(unknown.status().code() == Code::kNotFound);
  CHECK(unknown.status().message().find("numbers, refuses") != std::string::npos);
  const auto none = make_part(listed().objectives, {"focal"});
  CHECK(none.status().message().find("it lists none") != std::string::npos);
  const auto refused = make_part(listed().data_sources, {"refuses"});
  CHECK(refused.status().message() == "data source \"refuses\": no file");
}

TEST_CASE("a run's choice travels as JSON") {
  const PartChoices choices{.optimizer = {{"lion", {{"beta", 0.5}}}},
                            .callbacks = {{"silent"}, {"other", {{"n", 1}}}}};
  const json::Value value = to_json(choices);
  const auto back = part_choices_from_json(value);
  REQUIRE(back.ok());
  CHECK(to_json(*back) == value);
  CHECK_FALSE(back->objective);
  CHECK(back->optimizer->name == "lion");
  CHECK(back->callbacks.size() == 2);
  CHECK(to_json(PartChoices()) == json::Value(json::Object()));
  CHECK(part_choices_from_json(json::Object{{"optimizer", json::Object{{"name", "x"}}}})
            .status()
            .code() == Code::kDataLoss);
}

}  // namespace
}  // namespace troupe::train
