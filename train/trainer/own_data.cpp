#include "train/trainer/own_data.h"

#include <fmt/format.h>

#include "runtime/base/json.h"
#include "train/parts/arguments_json.h"
#include "train/parts/own_model_passes.h"
#include "train/trainer/state_io.h"

namespace troupe::train {
namespace {

Status check(const TrainingSample& sample, std::int64_t length_max, std::int64_t vocab_size) {
  if (sample.ids.empty() || std::ssize(sample.ids) > length_max)
    return error(Code::kInvalidArgument, "{} tokens, where 1 to length_max() = {} are allowed",
                 sample.ids.size(), length_max);
  if (!sample.labels.empty() && sample.labels.size() != sample.ids.size())
    return error(Code::kInvalidArgument, "{} tokens and {} labels", sample.ids.size(),
                 sample.labels.size());
  const auto known = [&](std::int64_t id) { return id >= 0 && id < vocab_size; };
  for (const TokenId id : sample.ids)
    if (!known(id))
      return error(Code::kInvalidArgument, "token {}, where the model's vocabulary has {}", id,
                   vocab_size);
  for (const std::int32_t label : sample.labels)
    if (label != kIgnoredLabel && !known(label))
      return error(Code::kInvalidArgument, "label {}, where the model's vocabulary has {}", label,
                   vocab_size);
  return {};
}

}  // namespace

Result<TrainingSample> row_of(TrainingSample sample, std::int64_t sample_values,
                              std::int64_t length_max, std::int64_t vocab_size) {
  if (sample_values > 0) return row_of_values(sample, sample_values);
  if (!sample.values.empty())
    return error(Code::kInvalidArgument, "{} numbers, where a language model is trained on tokens",
                 sample.values.size());
  TROUPE_RETURN_IF_ERROR(check(sample, length_max, vocab_size));
  if (sample.labels.empty()) sample.labels = sample.ids;
  return sample;
}

Result<std::shared_ptr<const DataSource>> make_source(const TrainingParts& parts,
                                                      const PartChoice& choice) {
  auto source = TROUPE_TRY(make_data_source(parts, choice));
  if (source->size() >= 1 && source->size() <= kPermutationSizeMax && source->length_max() >= 1)
    return source;
  return error(Code::kInvalidArgument,
               "data source \"{}\": size() is {} and length_max() {}; both are at least 1, and an "
               "epoch has at most {} samples",
               choice.name, source->size(), source->length_max(), kPermutationSizeMax);
}

Result<std::unique_ptr<OwnData>> OwnData::make(const TrainingParts& parts,
                                               const PartChoices& choices, const SourceFacts& facts,
                                               std::int64_t vocab_size) {
  std::unique_ptr<OwnData> own(new OwnData(parts, *choices.data_source, facts));
  if (choices.model) own->sample_values_ = facts.length_max - 1;
  own->vocab_size_ = vocab_size;
  own->source_ = TROUPE_TRY(own->source_of(""));
  return own;
}

Result<std::shared_ptr<const DataSource>> OwnData::source_of(const std::string& arguments) const {
  PartChoice choice = choice_;
  if (!arguments.empty()) {
    choice.arguments = TROUPE_TRY(
        arguments_from_json(TROUPE_TRY(json::parse(arguments, "the data source's arguments"))));
  }
  auto source = TROUPE_TRY(make_source(parts_, choice));
  const bool fits = sample_values_ > 0 || source->length_max() <= facts_.length_max;
  if (source->size() == facts_.samples && fits) return source;
  return error(
      Code::kFailedPrecondition,
      "data source \"{}\" has {} samples of up to {} tokens, the run was planned for {} of "
      "up to {}: size() stays as it is during a run, and length_max() does not grow",
      choice_.name, source->size(), source->length_max(), facts_.samples, facts_.length_max);
}

Status OwnData::use(const std::string& arguments) {
  if (source_ && arguments == arguments_) return {};
  source_ = TROUPE_TRY(source_of(arguments));
  arguments_ = arguments;
  return {};
}

Status OwnData::begin_step(collective::Communicator& world, TrainingObserver& observer,
                           const CommitRecord& last, StepPlan& plan) {
  std::string arguments(last.data());
  wish_.clear();
  if (world.rank() == 0) {
    if (auto wish = observer.data_wish()) {
      // Who wished it is told; the run goes on as it was.
      Status possible = wish->size() < last.data_arguments.size()
                            ? source_of(*wish).status()
                            : error(Code::kInvalidArgument,
                                    "a data source's arguments are {} bytes of JSON at most",
                                    last.data_arguments.size() - 1);
      if (possible.ok()) {
        wish_ = *wish;
        arguments = wish_;
      } else {
        observer.data_wish_done(*wish, std::move(possible));
      }
    }
  }
  TROUPE_RETURN_IF_ERROR(broadcast_text(world, arguments));
  TROUPE_RETURN_IF_ERROR(use(arguments));
  dataset_ = TokenDataset(TokenDataset::Kind::kSupervised, 0);
  for (auto& batch : plan.batches) {
    for (std::uint32_t& number : batch) {
      auto sample = source_->sample(plan.epoch, number);
      if (sample.ok())
        sample = row_of(std::move(*sample), sample_values_, facts_.length_max, vocab_size_);
      if (!sample.ok())
        return sample.status().prefixed(fmt::format("data source \"{}\", sample {} of epoch {}",
                                                    choice_.name, number, plan.epoch));
      number = static_cast<std::uint32_t>(dataset_.size());
      dataset_.append(sample->ids, sample->labels);
    }
  }
  return {};
}

void OwnData::note(CommitRecord& record) const { record.set_data(arguments_); }

void OwnData::step_stands(TrainingObserver& observer) {
  if (!wish_.empty()) observer.data_wish_done(std::exchange(wish_, ""), {});
}

}  // namespace troupe::train
