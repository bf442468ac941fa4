#pragma once
// Pipeline<In, Out>: stages that are bound once to methods of actors, and items that go from one to
// the next through memory that was made before: no call is made, and the one who pushes takes no
// part, between the first stage and the last.
//
//   troupe::PipelineBuilder<Text> plan(cluster);
//   auto pipeline = plan.stage<&Reader::read>("read", reader)
//                       .stage<&Work::map>("map", workers)       // several actors take turns
//                       .stage<&Sum::add>("sum", sum)
//                       .build({.in_flight = 16}).value();
//   Future<int> sum = pipeline.push(text).value();                // waits for room
//
// Branches begin where two stages follow one, and end in a method with an argument of each:
//
//   auto words = plan.stage<&Splitter::split>("split", splitter);
//   auto report = plan.join<&Report::add>("report", report_actor,
//                                         words.stage<&Counter::count>("count", counter),
//                                         words.stage<&Finder::longest>("longest", finder));
//   auto pipeline = report.build().value();
//
// - What a stage gives is what the next one's method takes, or it does not compile. A method that
//   takes a BytesView of a std::vector<std::byte> reads it where it lies. Large items go as objects
//   (ObjectRef).
// - Each item goes through every stage once, and results come in the order of the items. An item
//   for which a method fails goes no further: its future has the error, others go on.
// - At most in_flight items are between push() and their results; push() waits for room, and no
//   stage waits for any other. So there is nothing in which stages could block each other.
// - Methods run as calls do: on the actor's thread, between its other calls, saved after.
// - An actor that dies is started anew as its ActorOptions say (max_restarts), takes its place in
//   the pipeline, and goes on with what was not delivered: an item may come to its method again,
//   unless the class is kExactlyOnce; not without end (PipelineOptions::item_tries). One that is
//   dead for good ends the pipeline. The objects that it has passed on stay until their item's
//   result was taken. (What one that is kExactlyOnce had saved and not passed on when it died is
//   not made again: an item that refers to objects which went with it ends with kObjectLost.)
// - The actors stay yours, and have processes of their own. Those on the node of the process that
//   builds the pipeline share its memory; to those on other nodes items go over the network, by way
//   of that process. A connection to one of them that breaks is made again, and no item is lost or
//   run twice for it; one to an actor that runs, and cannot be made for so long
//   (PipelineOptions::reconnect_timeout), ends the pipeline (kUnavailable). (An owner
//   or a node that the head takes for dead is gone before that.)
//
// Thread-safe. Futures as those of calls: cancelling one stops nothing.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "troupe/actors.h"
#include "troupe/detail/access.h"
#include "troupe/detail/durations.h"
#include "troupe/detail/method_call.h"
#include "troupe/detail/pipeline_core.h"
#include "troupe/future.h"
#include "troupe/handle.h"

namespace troupe {

struct PipelineOptions {
  // Items between push() and their results, at most 1,024.
  std::uint32_t in_flight = 16;
  // What one output takes as bytes, at most 1 GiB. A stage's channel has room for in_flight of
  // these; it is memory where items have been.
  std::uint64_t item_bytes_max = std::uint64_t{1} << 20;
  // In which a stage's method begins with an item that has come to it; else it fails.
  std::chrono::milliseconds item_timeout{600'000};
  // An item with which so many processes of a stage's actor have died goes no further: it ends with
  // kActorDied, and the others go on. At least 1.
  std::uint32_t item_tries = 3;
  // In which a connection to an actor on another node that runs comes again; else the pipeline
  // ends. The actor keeps what is under way for as long, and its memory. At most ten minutes.
  std::chrono::milliseconds reconnect_timeout{60'000};
  // In which all actors run and are bound.
  std::chrono::milliseconds build_timeout{30'000};
};

struct PipelineStageStatus {
  std::string name;
  std::size_t actors = 0;
  std::size_t bound = 0;       // of them; the others are not there (yet, or again)
  std::size_t waiting = 0;     // items that have come to it, and that it has not done
  bool has_oldest = false;     // of them that which all results behind it wait for
  std::uint64_t respawns = 0;  // processes of its actors that were replaced
};
struct PipelineStatus {
  std::uint64_t pushed = 0;
  std::uint64_t delivered = 0;
  std::vector<PipelineStageStatus> stages;
  Status trouble;  // why it has ended, where it has
};

namespace detail {

template <typename Out>
class PipelineItemState final : public FutureState<NonVoid<Out>>, public PipelineItem {
  using Base = FutureState<NonVoid<Out>>;

 public:
  PipelineItemState(FutureOptions options, std::weak_ptr<PipelineCore> pipeline)
      : Base(std::move(options)), pipeline_(std::move(pipeline)) {}
  void end(const Status& status, std::span<const std::byte> result, Continuations* later) override {
    if (!status.ok()) {
      Base::set(status, later);
    } else if constexpr (std::is_void_v<Out>) {
      Base::set(Unit{}, later);
    } else {
      const auto alive = pipeline_.lock();
      Base::set(decode_result<Out>(result, {.client = alive ? alive->client() : nullptr,
                                            .takes_references = alive != nullptr}),
                later);
    }
  }
  Status late() const override {
    const auto alive = pipeline_.lock();
    return alive ? alive->late() : Base::late();
  }

 private:
  void help(Deadline deadline) override {
    if (const auto alive = pipeline_.lock()) {
      alive->help(deadline, [this] { return this->ready(); });
    }
  }
  const std::weak_ptr<PipelineCore> pipeline_;
};

// Whether what is written as a From is read as a To.
template <typename From, typename To>
constexpr bool same_bytes() {
  if constexpr (std::is_void_v<From>) {
    return false;
  } else {
    return Codec<From>::kHash == Codec<To>::kHash;
  }
}

// Refuses, with a message, a stage whose method does not take what comes to it: argument by
// argument, of `Given`.
template <auto Method, typename Parameters, typename... Given>
struct StageInputs;
template <auto Method, typename... P, typename... Given>
struct StageInputs<Method, std::tuple<P...>, Given...> {
  static_assert(sizeof...(P) == sizeof...(Given),
                "a stage's method takes one argument from each stage before it");
  static constexpr bool each_fits() {
    if constexpr (sizeof...(P) == sizeof...(Given)) {
      return (same_bytes<Given, std::decay_t<P>>() && ...);
    }
    return true;  // the count was reported
  }
  static_assert(each_fits(),
                "what the stage before gives is not what this stage's method takes: let one return "
                "the type that the other has as its parameter (both are in the line above)");
  static constexpr bool kGood = sizeof...(P) == sizeof...(Given) && each_fits();
};

template <typename T>
std::vector<ActorHandle<T>> handles_of(ActorHandle<T> one) {
  return {std::move(one)};
}
template <typename T>
std::vector<ActorHandle<T>> handles_of(std::vector<ActorHandle<T>> all) {
  return all;
}

}  // namespace detail

// A pipeline in progress. Moved, not copied; one that goes ends what is under way with kCancelled.
template <typename In, typename Out>
class Pipeline {
 public:
  // None, as one that was moved from: everything ends with kFailedPrecondition.
  Pipeline() = default;
  Pipeline(Pipeline&&) noexcept = default;
  Pipeline& operator=(Pipeline&& other) noexcept {
    std::swap(core_, other.core_);
    return *this;
  }
  ~Pipeline() {
    if (core_) core_->end();
  }

  // Puts an item in; waits until there is room. kOverloaded: there was none within the time, or
  // this is a thread that must not wait (Troupe's own, or in an asynchronous method). After that
  // every item has a result: the future.
  Result<Future<Out>> push(const In& item, Duration timeout = kCallTimeout) const {
    if (!core_) return detail::empty_pipeline_error();
    Encoder out;
    Codec<In>::encode(out, item);
    detail::PackedArguments packed{out.take(), {}};
    packed.kept = std::move(out.kept());
    auto state = std::make_shared<detail::PipelineItemState<Out>>(core_->future_options(), core_);
    TROUPE_RETURN_IF_ERROR(core_->push(std::move(packed), state, Deadline::after(timeout)));
    return Future<Out>(std::move(state));
  }
  // Takes no more items, waits for the results of those that are in it, and lets the actors go.
  // kDeadlineExceeded: some had none by then; their futures end with kCancelled.
  Status close(Duration timeout = kCallTimeout) const {
    return core_ ? core_->close(Deadline::after(timeout)) : detail::empty_pipeline_error();
  }
  PipelineStatus status() const { return core_ ? core_->status() : PipelineStatus(); }

 private:
  template <typename, typename>
  friend class PipelinePort;
  explicit Pipeline(std::shared_ptr<detail::PipelineCore> core) : core_(std::move(core)) {}
  std::shared_ptr<detail::PipelineCore> core_;
};

template <typename In>
class PipelineBuilder;

// What a stage gives, of a pipeline into which an In is pushed: a T for each item.
template <typename In, typename T>
class PipelinePort {
 public:
  // A further stage: a method of one actor (a handle) or of several that take turns (a vector of
  // handles), with what this one gives as its argument.
  template <auto Method, typename Actors>
  auto stage(std::string name, Actors actors) const {
    return PipelineBuilder<In>::template add<Method>(draft_, std::move(name),
                                                     detail::handles_of(std::move(actors)), *this);
  }
  // The pipeline whose results are what this stage gives. Waits until its actors run and are bound.
  // kInvalidArgument, with the stages' names: what nobody takes, a name that two have, options that
  // make no sense. kDeadlineExceeded: which stages were not bound, and why.
  Result<Pipeline<In, T>> build(const PipelineOptions& options = {}) const {
    return Pipeline<In, T>(TROUPE_TRY(detail::PipelineCore::create(*draft_, channel_, options)));
  }

 private:
  template <typename>
  friend class PipelineBuilder;
  PipelinePort(std::shared_ptr<detail::PipelineDraft> draft, std::uint32_t channel)
      : draft_(std::move(draft)), channel_(channel) {}
  std::shared_ptr<detail::PipelineDraft> draft_;
  std::uint32_t channel_;
};

// Draws a pipeline, stage by stage. A stage is named after those before it, so there are no cycles.
template <typename In>
class PipelineBuilder {
 public:
  // `actors`: a Cluster, or an ActorContext.
  explicit PipelineBuilder(const Actors& actors)
      : draft_(new detail::PipelineDraft{detail::Access::usable(actors), {}, {}}) {}

  // A first stage: its argument is what is pushed.
  template <auto Method, typename Actors>
  auto stage(std::string name, Actors actors) const {
    return PipelinePort<In, In>(draft_, 0).template stage<Method>(std::move(name),
                                                                  std::move(actors));
  }
  // One whose arguments are what several stages give, in order.
  template <auto Method, typename Actors, typename... T>
  auto join(std::string name, Actors actors, const PipelinePort<In, T>&... before) const {
    return add<Method>(draft_, std::move(name), detail::handles_of(std::move(actors)), before...);
  }

 private:
  template <typename, typename>
  friend class PipelinePort;
  template <auto Method, typename Actor, typename... T>
  static auto add(const std::shared_ptr<detail::PipelineDraft>& draft, std::string name,
                  const std::vector<ActorHandle<Actor>>& actors,
                  const PipelinePort<In, T>&... before) {
    using Call = detail::MethodCall<Actor, Method>;
    static_assert(detail::StageInputs<Method, typename Call::Traits::Parameters, T...>::kGood);
    detail::StageDraft stage{.name = std::move(name),
                             .inputs = {before.channel_...},
                             .interface = detail::kActorInterface<Actor>,
                             .method = Call::kNumber,
                             .actors = {}};
    for (const auto& actor : actors) {
      stage.actors.push_back(detail::Access::channel(actor));
      stage.light = stage.light || actor.light();
    }
    const bool own = ((before.draft_ == draft) && ...);
    if (!own && draft->trouble.ok()) {
      draft->trouble =
          Status(Code::kInvalidArgument, "stage '" + stage.name +
                                             "' takes what a stage of another pipeline "
                                             "gives: draw both with one PipelineBuilder");
    }
    return PipelinePort<In, typename Call::Value>(draft, draft->add(std::move(stage)));
  }

  std::shared_ptr<detail::PipelineDraft> draft_;
};

}  // namespace troupe
