#pragma once
// A node's GPUs: who holds which, and when one is free again.
//
// An actor with n GPUs gets n whole devices, one with a fraction gets a part of one that others may
// share. A device that somebody held is free again when no process of theirs is left on it and its
// memory is about what it was before: processes are gone before their memory is. Where that does
// not come true in time the device is stuck, and nobody gets it until it does.
//
// Pure: equal calls give equal answers; it reads no device. Where the node's amount of GPUs is more
// than its devices, the rest are amounts that no device stands for: they are given last, and
// nothing is known of them.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/wire/keeper_messages.h"
#include "scheduler/node/nvml.h"
#include "scheduler/policy/gpu_topology.h"

namespace troupe::scheduler {

struct NodeGpus {
  std::vector<wire::GpuDevice> devices;
  GpuPairs without_peer_access;  // as Nvml::Inventory has them
  // What is on each of them as the node starts. Empty: nobody can tell (no NVML), and a device is
  // free as soon as its processes are gone.
  std::vector<GpuReading> readings;
};

class GpuDevices {
 public:
  // How much more than before may be used on a device that is free: what a driver keeps that has
  // had its first process.
  static constexpr std::uint64_t kSlackBytes = 512u << 20;

  // Of a job: whether memory that outlives its processes is kept on this node.
  using KeepsMemory = std::function<bool(const JobId&)>;
  struct Note {
    std::string kind;  // of event_kinds.h
    std::string text;
  };

  // `amount`: the node's GPUs in fixed point. Fewer than the devices: the first ones.
  GpuDevices(const NodeGpus& gpus, std::int64_t amount);

  // Whether any of them is a device, so that processes have to be told which are theirs.
  bool any_device() const;
  // Whether somebody has to read the devices.
  bool readable() const { return readable_; }

  // Why an actor with so much can never run here. kInvalidArgument: more than one, and not whole.
  // kFailedPrecondition: several, which are instances of divided GPUs. kUnavailable: too few that
  // are not lost.
  Status check(std::int64_t amount) const;
  // Gives it devices, those it had before (`before`, their names) where they are free. False: not
  // now.
  bool take(const wire::GpuHolder& holder, const JobId& job_id,
            const std::vector<std::string>& before, const KeepsMemory& keeps);
  // What a daemon before this one gave it.
  void adopt(const wire::GpuHolder& holder, const JobId& job_id,
             const std::vector<std::string>& names);
  void adopt(const wire::KeptGpu& kept, TimePoint now);
  // An actor that holds nothing of these devices (their names) and sees them, as its own
  // environment has it: whoever waits for their memory does not wait for its process.
  void visit(const wire::GpuHolder& guest, const std::vector<std::string>& names);
  void visitor_runs(const ActorId& actor_id, std::int64_t pid);
  // Nothing of its processes runs any more.
  void release(const ActorId& actor_id, TimePoint now);

  // A reading was begun; those with a number that was not given before say nothing new.
  std::uint64_t begin_reading() { return ++readings_begun_; }
  // `number`: of begin_reading(); 0: nobody had asked.
  void seen(std::uint64_t number, const std::vector<GpuReading>& readings);
  // The device, or each instance of it, is not to be used any more. Who held or saw it is to end.
  std::vector<ActorId> lose(const std::string& uuid, const std::string& why);
  // Deadlines. Before settling anything else.
  void tick(TimePoint now, const KeepsMemory& keeps);
  std::optional<TimePoint> next_deadline() const;
  // When the devices should be read next; nothing: nobody waits for them.
  std::optional<Duration> reading_interval() const;

  // What the actor has: devices, and their names (cuda_name; "amount" where there is none).
  // Not what it only sees.
  std::vector<wire::GpuDevice> devices_of(const ActorId& actor_id) const;
  std::vector<std::string> names_of(const ActorId& actor_id) const;
  // What the node has to offer: without what is stuck or lost, besides what is still held of it.
  std::int64_t amount() const;
  std::vector<wire::GpuStatus> status() const;
  // Each device and its state, for somebody who waits: "GPU 0 (H100): held by a, 0.5 free; …".
  std::string describe() const;
  // To put down for the next daemon; empty where nothing changed since.
  std::optional<wire::KeptGpus> changed();
  std::vector<Note> take_notes() { return std::exchange(notes_, {}); }
  std::optional<std::string> broken_invariant() const;

 private:
  struct Guest {
    wire::GpuHolder holder;  // with a share of 0
    std::int64_t pid = 0;    // 0: not started yet
  };
  struct Slot {
    wire::GpuDevice device;
    std::string name;
    bool pool = false;  // no device: what the node's amount is more than its devices; the last one
    std::int64_t capacity = wire::kResourceUnit;
    std::vector<wire::GpuHolder> holders;
    std::vector<Guest> guests;  // who see it and hold nothing of it
    JobId last_job;
    std::uint64_t idle_bytes = 0;  // used as nobody held it: the least that was seen
    std::vector<std::int64_t> idle_pids;
    std::uint64_t used_bytes = 0;
    std::vector<GpuReading::Process> processes;
    // Set while its memory is waited for: until when, and which readings are new enough.
    std::optional<TimePoint> release_by;
    std::uint64_t released_after = 0;
    bool answered = false;  // … it was read since
    bool vacant = false;    // … no process is left on it but those of guests
    bool stuck = false;
    bool lost = false;
    std::string trouble;

    bool releasing() const { return release_by.has_value() || stuck; }
    std::int64_t held() const;
  };
  wire::GpuState state_of(const Slot& slot) const;
  bool is_open(const Slot& slot, const JobId& job_id, const KeepsMemory& keeps) const;
  void give(Slot& slot, const wire::GpuHolder& holder, const JobId& job_id, std::int64_t share);
  // Whether all processes on it were there before anybody held it, or are guests'.
  static bool is_vacant(const Slot& slot);
  void look(Slot& slot, const GpuReading& reading, bool new_enough);
  void become_free(Slot& slot);
  static std::string label(const Slot& slot);

  std::vector<Slot> slots_;
  GpuTopology topology_;
  bool readable_ = false;
  std::uint64_t readings_begun_ = 0;
  bool changed_ = false;
  std::vector<Note> notes_;
};

}  // namespace troupe::scheduler
