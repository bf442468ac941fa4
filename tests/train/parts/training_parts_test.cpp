#include "train/parts/training_parts.h"

#include <doctest/doctest.h>

namespace troupe::train {
namespace {

class Numbers : public DataSource {
 public:
  explicit Numbers(const Arguments& arguments) : size_(arguments.integer("size", 1)) {}
  std::int64_t size() const override { return size_; }
  std::int64_t length_max() const override { return 1; }
  Result<TrainingSample> sample(std::int64_t, std::int64_t number) const override {
    return TrainingSample{{static_cast<std::int32_t>(number)}, {}};
  }

 private:
  std::int64_t size_;
};
class Silent : public TrainingCallback {};

TrainingParts listed() {
  TrainingParts parts;
  parts.add<Numbers>("numbers").add<Silent>("silent");
  parts.data_sources["refuses"] = [](const Arguments&) -> Result<std::shared_ptr<DataSource>> {
    return error(Code::kInvalidArgument, "no file");
  };
  return parts;
}

TEST_CASE("a part is made by its name from the run's arguments") {
  const auto made = make_data_source(listed(), {"numbers", {{"size", 7}}});
  REQUIRE(made.ok());
  CHECK((*made)->size() == 7);
  CHECK(make_callback(listed(), {"silent"}).ok());
}

TEST_CASE("a name that is not listed is refused with those that are, a factory's refusal named") {
  const auto unknown = make_data_source(listed(), {"number"});
  CHECK(unknown.status().code() == Code::kNotFound);
  CHECK(unknown.status().message().find("numbers, refuses") != std::string::npos);
  const auto none = make_objective(listed(), {"focal"});
  CHECK(none.status().message().find("it lists none") != std::string::npos);
  const auto refused = make_data_source(listed(), {"refuses"});
  CHECK(refused.status().message() == "data source \"refuses\": no file");
}

TEST_CASE("an argument that nobody reads, or of another kind, is refused by its name") {
  const auto message = [](const PartChoice& choice) {
    return make_data_source(listed(), choice).status().message();
  };
  CHECK(message({"numbers", {{"sise", 7}}}) ==
        "data source \"numbers\": its constructor reads no argument \"sise\"");
  CHECK(message({"numbers", {{"size", "7"}}}) ==
        "data source \"numbers\": the argument \"size\" is no whole number");
  CHECK_FALSE(make_callback(listed(), {"silent", {{"loud", true}}}).ok());
}

TEST_CASE("a run's choice travels as JSON") {
  const PartChoices choices{.optimizer = PartChoice{"lion", {{"beta", 0.5}}},
                            .model = PartChoice{"line"},
                            .callbacks = {{"silent"}, {"other", {{"n", 1}}}}};
  const json::Value value = to_json(choices);
  const auto back = part_choices_from_json(value);
  REQUIRE(back.ok());
  CHECK(to_json(*back) == value);
  CHECK_FALSE(back->objective);
  CHECK(back->optimizer->name == "lion");
  CHECK(back->model->name == "line");
  CHECK(back->callbacks.size() == 2);
  CHECK(to_json(PartChoices()) == json::Value(json::Object()));
  CHECK(part_choices_from_json(json::Object{{"optimizer", json::Object{{"name", "x"}}}})
            .status()
            .code() == Code::kDataLoss);
}

}  // namespace
}  // namespace troupe::train
