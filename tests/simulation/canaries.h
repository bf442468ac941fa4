#pragma once
// Mistakes planted in the code itself (runtime/base/canary.h), to see that seeds find them.

#include <array>
#include <string>
#include <string_view>

#include "runtime/base/canary.h"

namespace troupe::simulation {

// Those in a client's conversation with the head (scheduler/client/head_session.cpp).
inline constexpr std::array<std::string_view, 8> kHeadSessionCanaries = {
    "session-forgets-requests",      // what is unanswered is not repeated on the next connection
    "session-repeats-out-of-order",  // it is, in another order than it was asked in
    "session-answers-twice",         // what is answered is repeated, too
    "session-reuses-ids",            // numbers begin anew with a connection
    "session-forgets-watches",       // watches are not renewed
    "session-passes-outdated",       // an update that is older than the known one is passed on
    "session-forgets-timeout",       // requests wait for a head that stays away
    "session-trusts-silence",        // an introduction that nobody answers is waited for
};

// Those in the conversations between callers and actors (actors/session).
inline constexpr std::array<std::string_view, 17> kCallSessionCanaries = {
    "call-without-deadline",            // a call that is sent at once has no deadline
    "stays-with-older-process",         // a caller does not leave a process that has a successor
    "sends-again-unasked",              // what was cut off is sent again without retry
    "sends-newest-first",               // what waited is sent in another order
    "loses-what-comes-back",            // what a process gives back is not sent to the next
    "forgets-what-waits-for-the-link",  // what a full link refused is not sent later
    "forgets-streams-of-ended-links",   // a stream waits for a caller whose link has ended
    "older-callers-may-call",           // a process is called by one that has a successor
    "older-links-unbind",               // the end of an older link ends the newer one
    "runs-again-what-is-sent-again",    // a living actor runs a call twice
    "keeps-no-answers",                 // the answer of a call that is sent again is gone
    "forgets-callers-with-calls",       // a caller that comes back has its call run twice
    "saves-what-has-not-run",           // what is queued is saved as run
    "saves-the-last-answer-alone",   // those before it, of calls that save nothing, are not saved
    "restores-the-last-save-alone",  // what the saves before it said is forgotten
    "restores-no-answers",           // a new process does not know what the one before has run
    "forgets-lost-state",            // nobody is told that saved state was lost
};

// Those in the order of a trainer's generations (train/trainer/generation_queue.cpp), recoveries
// and steps (train/transaction).
inline constexpr std::array<std::string_view, 13> kTrainingCanaries = {
    "watches-nobody-again",  // a restored controller hears of no trainer's process any more
    "forgets-aborts-of-waiting-plans",  // a plan that is aborted before its turn is worked on
    "decides-alone",                    // what had prepared is discarded before others are heard
    "leaves-updates-behind",            // a step that others committed counts without its update
    "remembers-updates",                // what is loaded is taken for updated as it was before
    "publishes-steps-only",  // owners' parameters do not go to all at a generation's begin
    "commits-before-votes",  // a step is committed before the others have voted
    "commits-without-all",   // a step is committed with a rank's vote missing
    "publishes-no-steps",    // owners' parameters do not go to all after a step
    "discards-what-the-lost-committed",  // a step that all who are left had prepared is done again
    "prepares-before-its-buddy",         // a rank votes before what it keeps has its gradients
    "hands-over-unfinished",             // a step that a world before had decided is left half done
    "takes-ranks-for-lasting",  // a trainer is taken to have had the same rank in the world before
};

// Those of object stores (scheduler/objects), and of how processes use them.
inline constexpr std::array<std::string_view, 9> kObjectCanaries = {
    "frees-before-it-has-read",         // a holder that has said so, unread, is not counted
    "frees-what-came-meanwhile",        // what is let go while the store reads is freed at its end
    "borrows-without-waiting",          // a reference is taken before its home knows the new node
    "forgets-borrowers",                // a home does not count the nodes that hold an object
    "keeps-what-the-dead-held",         // a process that has gone holds its objects still
    "moves-what-is-in-use",             // a segment that somebody reads is taken away
    "drops-what-cannot-be-fetched",     // the last copy of an object is dropped as one of many
    "forgets-what-waits-for-disk",      // who waits for an object on its way to disk is not told
    "keeps-the-place-before-the-disk",  // an object that is back from disk is looked for where it
                                        // was
};

// Those in who decides where tasks run (actors/tasks/lease_queue.cpp).
inline constexpr std::array<std::string_view, 5> kTaskCanaries = {
    "counts-no-tries",             // a task that kills its workers runs without end
    "runs-again-unasked",          // one that may not run twice does
    "forgets-tasks-of-the-dead",   // what a worker had is lost with it
    "forgets-what-is-given-back",  // what a worker has not begun does not wait again
    "keeps-idle-workers",          // those that have nothing to do are not ended
};

// Plants the mistake of this name in what runs in this thread, for as long as the object lives;
// none where it is empty.
class PlantedCanary {
 public:
  explicit PlantedCanary(std::string name);
  ~PlantedCanary();
  PlantedCanary(const PlantedCanary&) = delete;
  PlantedCanary& operator=(const PlantedCanary&) = delete;
};

}  // namespace troupe::simulation
