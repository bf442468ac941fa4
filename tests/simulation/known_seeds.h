#pragma once
// Which seed noticed a planted mistake last: it is tried first, since most seeds pass a mistake by.

#include <doctest/doctest.h>

#include <cstdint>
#include <string_view>

namespace troupe::simulation {

struct KnownSeed {
  std::string_view mistake;
  std::uint64_t seed;
};

inline constexpr KnownSeed kKnownSeeds[] = {
    {"forgets-fencing", 20},
    {"impatient-head", 1},
    {"ends-too-early", 1},
    {"sends-before-journal", 38},
    {"journals-one-by-one", 3},
    {"loses-messages", 3},
    {"leaks-descriptors", 1},
    {"forgets-records", 6},
    {"starts-twice", 1},
    {"loses-releases", 6},
    {"loses-exits", 1},
    {"forgets-leases", 5},
    {"answers-twice", 1},
    {"fences-all", 6},
    {"keeps-stale", 6},
    {"session-forgets-requests", 1},
    {"session-repeats-out-of-order", 1},
    {"session-answers-twice", 1},
    {"session-reuses-ids", 1},
    {"session-forgets-watches", 1},
    {"session-passes-outdated", 1},
    {"session-forgets-timeout", 10},
    {"session-trusts-silence", 37},
    {"call-without-deadline", 1},
    {"stays-with-older-process", 1},
    {"sends-again-unasked", 1},
    {"sends-newest-first", 1},
    {"loses-what-comes-back", 6},
    {"forgets-what-waits-for-the-link", 1},
    {"forgets-streams-of-ended-links", 13},
    {"older-callers-may-call", 6},
    {"older-links-unbind", 1},
    {"runs-again-what-is-sent-again", 1},
    {"keeps-no-answers", 2},
    {"forgets-callers-with-calls", 1},
    {"saves-what-has-not-run", 1},
    {"saves-the-last-answer-alone", 157},
    {"restores-the-last-save-alone", 2},
    {"restores-no-answers", 2},
    {"forgets-lost-state", 1},
    {"frees-before-it-has-read", 314},
    {"frees-what-came-meanwhile", 445},
    {"borrows-without-waiting", 38},
    {"forgets-borrowers", 1},
    {"keeps-what-the-dead-held", 1},
    {"moves-what-is-in-use", 1},
    {"drops-what-cannot-be-fetched", 1},
    {"forgets-what-waits-for-disk", 1},
    {"keeps-the-place-before-the-disk", 2},
    {"counts-no-tries", 1},
    {"runs-again-unasked", 1},
    {"forgets-tasks-of-the-dead", 1},
    {"forgets-what-is-given-back", 1},
    {"keeps-idle-workers", 1},
    {"memory-too-early", 401},
    {"redo-without-undo", 1},
    {"goes-when-heard", 401},
    {"names-after-number", 543},
    {"drops-when-taken", 401},
    {"watches-nobody-again", 403},
    {"forgets-aborts-of-waiting-plans", 3},
    {"decides-alone", 5},
    {"leaves-updates-behind", 1},
    {"remembers-updates", 78},
    {"publishes-steps-only", 1},
    {"commits-before-votes", 1},
    {"commits-without-all", 1},
    {"publishes-no-steps", 1},
    {"discards-what-the-lost-committed", 32},
    {"prepares-before-its-buddy", 87},
    {"hands-over-unfinished", 401},
    {"takes-ranks-for-lasting", 413},
};

// The first seed of 1…`seeds` that `notices`, or the known one; 0: none does.
template <typename Notices>
std::uint64_t seed_that_notices(std::string_view mistake, std::uint64_t seeds,
                                const Notices& notices) {
  std::uint64_t known = 0;
  for (const KnownSeed& one : kKnownSeeds)
    if (one.mistake == mistake) known = one.seed;
  if (known > 0 && known <= seeds && notices(known)) return known;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    if (seed == known || !notices(seed)) continue;
    MESSAGE("for known_seeds.h: {\"", mistake, "\", ", seed, "},");
    return seed;
  }
  return 0;
}

}  // namespace troupe::simulation
