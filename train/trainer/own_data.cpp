#include "train/trainer/own_data.h"

#include <fmt/format.h>

#include "runtime/base/json.h"
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

Result<std::shared_ptr<const DataSource>> make_source(const TrainingParts& parts,
                                                      const PartChoice& choice) {
  auto source = TROUPE_TRY(make_part(parts.data_sources, choice));
  if (source->size() >= 1 && source->size() <= kPermutationSizeMax && source->length_max() >= 1)
    return source;
  return error(Code::kInvalidArgument,
               "data source \"{}\": size() is {} and length_max() {}; both are at least 1, and an "
               "epoch has at most {} samples",
               choice.name, source->size(), source->length_max(), kPermutationSizeMax);
}

Result<std::unique_ptr<OwnData>> OwnData::make(const TrainingParts& parts, PartChoice choice,
                                               const SourceFacts& facts, std::int64_t vocab_size) {
  std::unique_ptr<OwnData> own(new OwnData(parts, std::move(choice), facts));
  own->vocab_size_ = vocab_size;
  own->source_ = TROUPE_TRY(own->source_of(""));
  return own;
}

Result<std::shared_ptr<const DataSource>> OwnData::source_of(const std::string& arguments) const {
  PartChoice choice = choice_;
  if (!arguments.empty()) {
    const json::Value given = TROUPE_TRY(json::parse(arguments, "the data source's arguments"));
    if (!given.is_object())
      return error(Code::kInvalidArgument, "a data source's arguments are an object of JSON");
    choice.arguments = given.get_object();
  }
  auto source = TROUPE_TRY(make_source(parts_, choice));
  if (source->size() == facts_.samples && source->length_max() <= facts_.length_max) return source;
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
      Status good = sample.ok() ? check(*sample, facts_.length_max, vocab_size_) : sample.status();
      if (!good.ok())
        return good.prefixed(fmt::format("data source \"{}\", sample {} of epoch {}", choice_.name,
                                         number, plan.epoch));
      number = static_cast<std::uint32_t>(dataset_.size());
      dataset_.append(sample->ids, sample->labels.empty() ? sample->ids : sample->labels);
    }
  }
  return {};
}

void OwnData::note(CommitRecord& record) const { record.set_data(arguments_); }

void OwnData::step_stands(TrainingObserver& observer) {
  if (!wish_.empty()) observer.data_wish_done(std::exchange(wish_, ""), {});
}

}  // namespace troupe::train
