#pragma once

#include <cstdint>

namespace troupe {

// When the runtime saves the state of an actor that has save() and load(). What was saved last
// survives the process, and follows the actor to another node; it is lost with the node that keeps
// it (ActorOptions::start_empty_on_state_loss).
//
//   static constexpr auto kSavePolicy = troupe::SavePolicy::every(100);
//
// With every_call() the class may also say
//
//   static constexpr bool kExactlyOnce = true;
//
// Then what was answered to whom is saved with the state, as one: a call with CallOptions::retry
// that is sent again after a death is answered again, and never run twice. Its calls run one at a
// time. A save writes the call's own answer, behind those of the saves before it; where there is no
// more room all that are kept are written anew, at most 128 for each caller and the newest 1,024
// and 1 MiB over all callers. A call that is repeated when its answer is gone ends with
// kUnavailable. Of callers without a connection the last 1,024 are known: one that comes back when
// so many others came and went may run a call twice.
//
// Where the saved state is lost with its node they are lost with it, and a call that is sent again
// may have run before: the kDataLoss that each caller gets once says so (state_loss.h).
struct SavePolicy {
  std::uint32_t every_calls = 1;  // 0: only where ActorContext::save_now() says so

  // After each call that may have changed the state (methods that are not const), before its answer
  // leaves: what a caller was told outlives the process. The default.
  static constexpr SavePolicy every_call() { return {1}; }
  // After every n-th such call: a death loses at most n - 1 answered calls.
  static constexpr SavePolicy every(std::uint32_t n) { return {n}; }
  static constexpr SavePolicy manual() { return {0}; }
};

}  // namespace troupe
