#pragma once
// One rank of a training run as an actor. The run's controller, an actor too, places the ranks,
// watches them and has those replaced that die; this class is what it places.
//
// A program's own class may be derived from it, with methods of its own and with parts of its own
// (parts.h):
//
//   class MyTrainer : public troupe::train::TrainerActor {
//    public:
//     MyTrainer(troupe::ActorContext& context, troupe::train::TrainerSetup setup)
//         : TrainerActor(context, std::move(setup), my_parts()) {}
//     troupe::Result<double> loss() {
//       return between_steps(
//           [](const troupe::train::TrainingView& run) { return run.last_step().loss; });
//     }
//     static constexpr auto methods = troupe::train::trainer_methods<&MyTrainer::loss>;
//     static constexpr auto groups = troupe::train::trainer_groups<&MyTrainer::loss>;
//   };
//
// Its program hosts it in place of TrainerActor (training.h). Its methods run on threads of their
// own, whatever the training does: what they want of it they do in between_steps().

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "troupe/actor.h"
#include "troupe/clock.h"
#include "troupe/codec.h"
#include "troupe/detail/durations.h"
#include "troupe/status.h"
#include "troupe/train/arguments.h"
#include "troupe/train/parts.h"
#include "troupe/train/training_view.h"

namespace troupe::train {

// A value that the library alone reads, on its way between a run's processes.
template <typename Value>
struct Sealed {
  std::shared_ptr<const Value> value;
};

struct StartedTrainer;
struct GenerationPlan;
struct TrainerStatus;
// The arguments with which a controller makes a trainer.
using TrainerSetup = Sealed<StartedTrainer>;

// What between_steps() returns for what its work gives.
template <typename T>
struct ResultOfWork {
  using Type = Result<T>;
};
template <>
struct ResultOfWork<void> {
  using Type = Status;
};
template <>
struct ResultOfWork<Status> {
  using Type = Status;
};
template <typename T>
struct ResultOfWork<Result<T>> {
  using Type = Result<T>;
};
template <typename T>
using ResultOf = typename ResultOfWork<T>::Type;

class TrainerActor {
 public:
  TrainerActor(ActorContext& context, TrainerSetup setup, TrainingParts parts = {});
  virtual ~TrainerActor();
  TrainerActor(const TrainerActor&) = delete;
  TrainerActor& operator=(const TrainerActor&) = delete;

  // --- for the run's controller ---
  // Joins a generation, the time between two changes of the set of processes that train; returns
  // at once.
  void begin(Sealed<GenerationPlan> plan);
  // Leaves a generation at once, wherever the training is; older and later ones are not touched.
  void abort(std::uint64_t generation, Status reason);
  // To rank 0: all ranks save after the step under way and leave, in whatever generation.
  void save_and_stop();
  // To rank 0: a finished model that could not be written goes to this folder.
  void save_to(std::string folder);
  // Answers at once, from any state.
  Sealed<TrainerStatus> status() const;
  // To rank 0: all ranks leave this generation after the step under way, for another world. It may
  // be told before that begins here.
  void pause(std::uint64_t generation);

  // Programs, nodes and the controller know derived classes by this one's name.
  using ActsAs = TrainerActor;
  static constexpr auto constructor = troupe::constructor<TrainerSetup>;
  static constexpr auto methods =
      troupe::methods<&TrainerActor::begin, &TrainerActor::abort, &TrainerActor::save_and_stop,
                      &TrainerActor::save_to, &TrainerActor::status, &TrainerActor::pause>;

 protected:
  // How long a method waits for the training to come to it.
  static constexpr Duration kBetweenStepsTimeout = std::chrono::seconds(30);
  // Runs `work` on the training's thread before the next step, or behind the last one: no rank is
  // in a step then, and what `work` gives is what this returns (a Status or Result as it is). The
  // order is that of the calls. After a recovery and beside an evaluation it waits for these.
  // kDeadlineExceeded: the training did not come to it. kFailedPrecondition: the run has ended. For
  // methods in trainer_groups: kFailedPrecondition on the actor's own thread, which must stay free
  // to leave a lost generation.
  template <typename Work>
  auto between_steps(Work&& work, Duration timeout = kBetweenStepsTimeout)
      -> ResultOf<std::invoke_result_t<Work, const TrainingView&>>;
  // On rank 0's trainer: the data source's arguments from the next step on, for all ranks and for
  // whatever process takes one's place; returns when a step with them stands. Equal arguments
  // again change nothing. kFailedPrecondition elsewhere, or where the run has no source of its own.
  Status change_data(const Arguments& arguments, Duration timeout = kBetweenStepsTimeout);

 private:
  class State;
  // As between_steps().
  Status wait_between_steps(std::function<void(const TrainingView&)> work, Duration timeout);

  std::unique_ptr<State> state_;
};

template <typename Work>
auto TrainerActor::between_steps(Work&& work, Duration timeout)
    -> ResultOf<std::invoke_result_t<Work, const TrainingView&>> {
  using Given = std::invoke_result_t<Work, const TrainingView&>;
  if constexpr (std::is_void_v<Given>) {
    return wait_between_steps([&](const TrainingView& run) { work(run); }, timeout);
  } else {
    std::optional<Given> given;
    TROUPE_RETURN_IF_ERROR(
        wait_between_steps([&](const TrainingView& run) { given = work(run); }, timeout));
    return std::move(*given);
  }
}

namespace detail {
template <auto... Own, auto... Base>
constexpr MethodList<Base..., Own...> with_base_methods(MethodList<Base...>) {
  return {};
}
}  // namespace detail

// `methods` of a class derived from TrainerActor, and the group that its own are in.
template <auto... Own>
inline constexpr auto trainer_methods =
    detail::with_base_methods<Own...>(std::remove_cvref_t<decltype(TrainerActor::methods)>{});
template <auto... Own>
inline constexpr auto trainer_groups = concurrency_groups<ConcurrencyGroup<"own", 4, Own...>>;

}  // namespace troupe::train

// The library's processes alone write and read the value, and those of another build refuse it.
template <typename Value>
struct troupe::Codec<troupe::train::Sealed<Value>> {
  static constexpr bool kSupported = true;
  static constexpr std::size_t kBytesMin = 8;
  static constexpr std::uint64_t kHash = TypeHash::of(troupe::detail::kTypeName<Value>);
  static void encode(Encoder& out, const troupe::train::Sealed<Value>& sealed);
  static bool decode(Decoder& in, troupe::train::Sealed<Value>& sealed);
};
