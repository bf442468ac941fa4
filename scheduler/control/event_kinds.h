#pragma once
// Every kind of event that `troupe events` can show, how grave it is, and what it means.

#include <algorithm>
#include <array>
#include <string_view>

namespace troupe::scheduler {

enum class Severity { kInfo, kWarning, kError };
constexpr std::string_view severity_name(Severity severity) {
  constexpr std::array<std::string_view, 3> kNames{"info", "warning", "error"};
  return kNames[static_cast<std::size_t>(severity)];
}

struct EventKind {
  std::string_view name;
  Severity severity;
  std::string_view meaning;
};

inline constexpr std::array kEventKinds{
    EventKind{"node_joined", Severity::kInfo, "a node joined the cluster"},
    EventKind{"node_returned", Severity::kInfo, "a node came back within its grace period"},
    EventKind{"node_numbered", Severity::kInfo,
              "a node that stood by got the number of one that was lost"},
    EventKind{"node_disconnected", Severity::kWarning,
              "a node's connection closed; it may come back"},
    EventKind{"node_draining", Severity::kInfo, "a node takes no new actors"},
    EventKind{"node_left", Severity::kInfo, "a node stopped its actors and left"},
    EventKind{"node_died", Severity::kError, "a node was silent, or did not come back"},
    EventKind{"node_suspected", Severity::kWarning,
              "a node is silent for longer than usual: it takes nothing new until it is heard"},
    EventKind{"node_heard", Severity::kInfo, "a suspected node is heard again"},
    EventKind{"daemon_restarted", Severity::kWarning,
              "a node's daemon was replaced; its actors ran on"},
    EventKind{"keeper_lost", Severity::kError,
              "a node's keeper was killed, and with it every process and kept memory there"},
    EventKind{"gpu_lost", Severity::kError,
              "a GPU failed: its actors are ended, and nobody gets it any more"},
    EventKind{"gpu_stuck", Severity::kWarning,
              "a GPU's memory is still held though its actors are gone: nobody gets it meanwhile"},
    EventKind{"gpu_freed", Severity::kInfo, "the memory of a stuck GPU is free again"},
    EventKind{"gpu_process_error", Severity::kWarning,
              "a driver reported an error of a program on a GPU; the GPU is well"},
    EventKind{"gpu_notice", Severity::kWarning, "a driver reported something about a GPU"},
    EventKind{"actor_created", Severity::kInfo, "an actor was accepted"},
    EventKind{"actor_starting", Severity::kInfo, "an actor was placed; its process starts"},
    EventKind{"actor_alive", Severity::kInfo, "an actor's constructor ran: it answers calls"},
    EventKind{"actor_restarting", Severity::kWarning,
              "an actor's process ended; another one will come"},
    EventKind{"actor_moving", Severity::kInfo,
              "an actor gets a next process that is no restart of its budget: its node is drained, "
              "or had not what the actor had saved"},
    EventKind{"state_lost", Severity::kError,
              "an actor starts without the state that it had saved, which was lost with a node"},
    EventKind{"actor_died", Severity::kInfo, "an actor ended for good; the text says why"},
    EventKind{"group_requested", Severity::kInfo, "a placement group was accepted"},
    EventKind{"group_created", Severity::kInfo, "a placement group is reserved, all of it"},
    EventKind{"group_refused", Severity::kWarning,
              "a node could not hold its part of a placement group; it is tried again"},
    EventKind{"group_rescheduling", Severity::kWarning,
              "a placement group lost a node, and with it its reservation; it is reserved anew"},
    EventKind{"group_removed", Severity::kInfo, "a placement group was removed"},
    EventKind{"job_submitted", Severity::kInfo, "a program was submitted to run on the cluster"},
    EventKind{"job_started", Severity::kInfo, "a job's program runs"},
    EventKind{"job_stopping", Severity::kInfo, "a job was asked to stop"},
    EventKind{"job_succeeded", Severity::kInfo, "a job's program ended with exit code 0"},
    EventKind{"job_failed", Severity::kWarning,
              "a job's program ended otherwise, or could not be started; the text says how"},
    EventKind{"job_stopped", Severity::kInfo, "a job ended because it was stopped"},
    EventKind{"version_refused", Severity::kWarning,
              "a node or client of another version of troupe came, and was refused"},
    EventKind{"owner_gone", Severity::kInfo,
              "a driver, an actor or its process is gone; what it owns ends with it"},
    EventKind{"supervisor_restarting", Severity::kWarning,
              "a member of a supervisor failed; those that its strategy names get new processes"},
    EventKind{"supervisor_escalated", Severity::kWarning,
              "a supervisor gave up; the one above it restarts it whole"},
    EventKind{"supervisor_ended", Severity::kInfo,
              "a supervisor ended with all of its members; the text says why"},
    EventKind{"head_restarted", Severity::kWarning, "the head came back and knows its cluster"},
    EventKind{"journal_failed", Severity::kError,
              "the head's journal cannot be written (a full disk?): the cluster runs on, but a "
              "head that is restarted now forgets what happened since"},
    EventKind{"journal_written", Severity::kInfo, "the head's journal is whole again"},
    EventKind{"journal_damaged", Severity::kError,
              "the end of the journal that the head was started with could not be read: the last "
              "decision may be forgotten; the text says where the bytes are kept"},
    EventKind{"journal_full", Severity::kError,
              "the head keeps as much as its journal may hold: new actors, placement groups, "
              "supervisors and jobs are refused until some have ended"},
    EventKind{"cluster_stopping", Severity::kInfo, "the cluster was told to stop"},
};

// Null for a kind that a later version may have added.
constexpr const EventKind* find_event_kind(std::string_view kind) {
  const auto* found = std::find_if(kEventKinds.begin(), kEventKinds.end(),
                                   [kind](const EventKind& k) { return k.name == kind; });
  return found == kEventKinds.end() ? nullptr : found;
}
constexpr bool is_event_kind(std::string_view kind) { return find_event_kind(kind) != nullptr; }
constexpr Severity severity_of(std::string_view kind) {
  const EventKind* found = find_event_kind(kind);
  return found == nullptr ? Severity::kInfo : found->severity;
}

}  // namespace troupe::scheduler
